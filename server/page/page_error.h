#ifndef GATEHOUSE_SERVER_PAGE_PAGE_ERROR_H_
#define GATEHOUSE_SERVER_PAGE_PAGE_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/json.h"

namespace gatehouse {

// How the live page's server says that something failed.

// 404 for NOT_FOUND, and so on.
int HttpStatusOf(absl::StatusCode code);

// {"error": {"code", "reason", "field", "message"}}: gRPC's name of the code, the reason as
// calls carry it, and the field of the request that the message speaks of ("" for none).
cli::Json PageErrorJson(const absl::Status& status);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_PAGE_PAGE_ERROR_H_
