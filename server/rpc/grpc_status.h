#ifndef GATEHOUSE_SERVER_RPC_GRPC_STATUS_H_
#define GATEHOUSE_SERVER_RPC_GRPC_STATUS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace gatehouse {

// Longest error message sent.  A client refuses a reply whose metadata exceed 8 KiB, so
// a message that echoes its input must not get there.
inline constexpr size_t kMaxErrorMessageBytes = 600;

// The status of a call as gRPC sends it: the same code, the message made safe to send,
// and the reason (server/base/error_reason.h) as google.rpc.ErrorInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

// `text` as a protobuf string may hold it: bytes that are not UTF-8 become U+FFFD.
std::string ValidUtf8(std::string_view text);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_GRPC_STATUS_H_
