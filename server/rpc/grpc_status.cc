#include "server/rpc/grpc_status.h"

#include <grpcpp/support/status.h>

#include "gatehouse/v1/errors.pb.h"
#include "server/base/error_reason.h"
#include "server/base/strings.h"
#include "server/serving/utf8_stream.h"

namespace gatehouse {
namespace {

constexpr std::string_view kErrorInfoType = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr std::string_view kCut = "…";

// UTF-8 without control characters, of at most kMaxErrorMessageBytes.
std::string SafeMessage(std::string_view message) {
  std::string safe = ValidUtf8(message.substr(0, kMaxErrorMessageBytes));
  for (char& c : safe) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  if (message.size() <= kMaxErrorMessageBytes && safe.size() <= kMaxErrorMessageBytes) return safe;
  size_t end = std::min(safe.size(), kMaxErrorMessageBytes) - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(safe[end]) & 0xC0) == 0x80) --end;
  return StrCat(std::string_view(safe).substr(0, end), kCut);
}

}  // namespace

std::string ValidUtf8(std::string_view text) {
  if (IsUtf8(text)) return std::string(text);
  Utf8Stream stream;
  std::string valid = stream.Append(text);
  return valid + stream.Finish();
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain("gatehouse");
  v1::ErrorStatus details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(SafeMessage(Message(status)));
  google::protobuf::Any* const any = details.add_details();
  any->set_type_url(kErrorInfoType.data(), kErrorInfoType.size());
  info.SerializeToString(any->mutable_value());
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

}  // namespace gatehouse
