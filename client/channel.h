#ifndef GATEHOUSE_CLIENT_CHANNEL_H_
#define GATEHOUSE_CLIENT_CHANNEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace gatehouse::client {

// The connection of a client: which calls are repeated, how large messages may be, and how a
// silent server is noticed.  Connects at its first call.  InvalidArgument, naming the option
// and its bound, for what is out of it.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ClientOptions& options);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_CHANNEL_H_
