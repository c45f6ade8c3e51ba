#ifndef GATEHOUSE_SERVER_PAGE_PAGE_SERVER_H_
#define GATEHOUSE_SERVER_PAGE_PAGE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace gatehouse {

struct PageServerOptions {
  // As ParsePageListen reads it; port 0 takes a free one.
  std::string listen;
  // Largest body of a request.
  size_t max_body_bytes = size_t{1} << 20;
  // Generations shown at once; one more is refused with RESOURCE_EXHAUSTED.
  int max_traces = 12;
  // How much may wait for a browser before its generation pauses.
  size_t outbox_bytes = size_t{256} << 10;
  // How long a browser may take nothing before it is given up, and send nothing.
  absl::Duration patience = absl::Seconds(20);
};

// The live page: GET / is a page with a form, POST /trace a generation whose events are
// streamed as lines of JSON.  It is a client of the server's own RPCs, so every limit of
// theirs is its own; a browser that goes away cancels its generation.  Owned by main;
// thread-safe.
class PageServer {
 public:
  // Listens at once.  InvalidArgument or Unavailable where the address cannot be listened
  // on, saying why.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(std::unique_ptr<client::Client> client,
                                                           const PageServerOptions& options);
  // Cancels what still runs, and waits for it.
  virtual ~PageServer() = default;

  virtual int port() const = 0;
  // Lets the generations that run go on until `deadline`; returns when none is left.
  virtual void Finish(absl::Time deadline) = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_PAGE_PAGE_SERVER_H_
