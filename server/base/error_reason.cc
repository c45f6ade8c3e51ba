#include "server/base/error_reason.h"

#include "absl/strings/cord.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr char kPayload[] = "gatehouse/reason";

}  // namespace

absl::Status WithReason(absl::Status status, std::string_view reason) {
  status.SetPayload(kPayload, absl::Cord(ToAbsl(reason)));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return "";
  if (const auto payload = status.GetPayload(kPayload); payload.has_value()) return std::string(*payload);
  if (status.code() == absl::StatusCode::kInvalidArgument) return std::string(reason::kInvalidField);
  return absl::StatusCodeToString(status.code());
}

}  // namespace gatehouse
