#ifndef GATEHOUSE_CLIENT_ERRORS_H_
#define GATEHOUSE_CLIENT_ERRORS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gatehouse/v1/errors.pb.h"

namespace grpc {
class Status;
}

namespace google::protobuf {
class Message;
}

namespace gatehouse::client {

// The Status of a finished call: the same code and message, with the server's
// google.rpc.ErrorInfo, where it sent one, as a payload.
absl::Status ToStatus(const grpc::Status& status);

// The server's ErrorInfo of a failed call: a stable reason such as "NOT_CALIBRATED",
// and details.  Empty where the failure did not come from a Gatehouse server, such as
// one that cannot be reached.
std::optional<v1::ErrorInfo> ErrorInfoOf(const absl::Status& status);

// The reason alone; empty where there is none.
std::string ErrorReason(const absl::Status& status);

// InvalidArgument naming the first string field of `message` that is not UTF-8, and the
// byte.  A proto3 string must be UTF-8, and a peer that finds one that is not drops the
// whole message, without saying why.
absl::Status CheckUtf8(const google::protobuf::Message& message);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_ERRORS_H_
