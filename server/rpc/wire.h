#ifndef GATEHOUSE_SERVER_RPC_WIRE_H_
#define GATEHOUSE_SERVER_RPC_WIRE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace gatehouse {

// The services read and write messages themselves, through gRPC's raw methods.  Left to
// gRPC, a request with a string that is not UTF-8 fails as UNIMPLEMENTED without a word,
// and a reply with one is lost in silence.

// Most bytes of a streamed message; clients by default refuse more than four times that.
inline constexpr size_t kMaxMessageBytes = size_t{1} << 20;

// InvalidArgument naming the field where a string is not UTF-8, or saying that the bytes
// are no such message.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_WIRE_H_
