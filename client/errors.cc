#include "client/errors.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/utf8.h"

namespace gatehouse::client {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";

absl::Status CheckUtf8Under(const google::protobuf::Message& message, const std::string& path);

absl::Status CheckString(const std::string& value, const std::string& field) {
  const size_t invalid = FindInvalidUtf8(value);
  if (invalid == std::string::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is not valid UTF-8 at byte ", invalid));
}

absl::Status CheckField(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field,
                        const std::string& path) {
  using google::protobuf::FieldDescriptor;
  const auto& reflection = *message.GetReflection();
  const bool is_string = field.type() == FieldDescriptor::TYPE_STRING;
  if (!is_string && field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return absl::OkStatus();
  if (!field.is_repeated()) {
    return is_string ? CheckString(reflection.GetString(message, &field), path)
                     : CheckUtf8Under(reflection.GetMessage(message, &field), path);
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const std::string element = absl::StrCat(path, "[", i, "]");
    const absl::Status status = is_string ? CheckString(reflection.GetRepeatedString(message, &field, i), element)
                                          : CheckUtf8Under(reflection.GetRepeatedMessage(message, &field, i), element);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8Under(const google::protobuf::Message& message, const std::string& path) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const auto* field : fields) {
    const absl::Status status = CheckField(message, *field, path.empty() ? field->name() : path + "." + field->name());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  // A proxy ends so what a replica had begun to answer when it died; a server's own error has details.
  if (absl::IsInternal(result) && status.error_details().empty() && absl::StrContains(result.message(), "RST_STREAM")) {
    return absl::UnavailableError(absl::StrCat("the server went away within its answer: ", result.message()));
  }
  v1::ErrorStatus details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.type_url() == kErrorInfoUrl) result.SetPayload(kErrorInfoUrl, absl::Cord(detail.value()));
  }
  return result;
}

std::optional<v1::ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorInfoUrl);
  v1::ErrorInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return std::nullopt;
  return info;
}

std::string ErrorReason(const absl::Status& status) {
  const std::optional<v1::ErrorInfo> info = ErrorInfoOf(status);
  return info.has_value() ? info->reason() : "";
}

absl::Status CheckUtf8(const google::protobuf::Message& message) { return CheckUtf8Under(message, ""); }

}  // namespace gatehouse::client
