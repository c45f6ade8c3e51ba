#ifndef GATEHOUSE_SERVER_PAGE_TRACE_CALL_H_
#define GATEHOUSE_SERVER_PAGE_TRACE_CALL_H_

#include <string>

#include "absl/status/status.h"
#include "client/client.h"
#include "server/page/outbox.h"
#include "server/page/trace_request.h"

namespace gatehouse {

// What the live page is made of: the models, for its form.
absl::StatusOr<std::string> LivePageJson(client::Client& client);

// Runs a generation through `client` and puts its events, one line of JSON each, into
// `outbox`: {"event": "start", …}, "tokens" and "end".  Returns how it ended; Cancelled
// where the reader closed the outbox.  Blocks; `canceller` ends it from another thread.
absl::Status RunTrace(client::Client& client, TraceRequest request, client::Canceller& canceller, Outbox& outbox);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_PAGE_TRACE_CALL_H_
