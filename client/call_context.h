#ifndef GATEHOUSE_CLIENT_CALL_CONTEXT_H_
#define GATEHOUSE_CLIENT_CALL_CONTEXT_H_

#include <grpcpp/client_context.h>

#include <string>

#include "absl/time/time.h"
#include "client/client.h"

namespace gatehouse::client {

// Whether a header may hold this: printable ASCII.  gRPC ends the program over any other.
bool CanBeSent(const std::string& header);

// The gRPC context of one call, with its deadline, which its Canceller can end.
class CallContext {
 public:
  // `replica` as in CallOptions.
  CallContext(absl::Time deadline, Canceller* canceller, const std::string& replica = "");
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  grpc::ClientContext* get() { return &context_; }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  Canceller* canceller_;
};

// An event that nobody listens to lets the call go on.
template <typename Listener, typename Event>
bool Tell(const Listener& listener, const Event& event) {
  return !listener || listener(event);
}

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_CALL_CONTEXT_H_
