#include "server/rpc/call_runner.h"

#include "absl/time/clock.h"
#include "server/base/error_reason.h"
#include "server/base/strings.h"
#include "server/serving/model_catalog.h"
#include "server/serving/observer.h"

namespace gatehouse {

absl::Status TooManyCalls(const CallSlots& slots) {
  return WithReason(
      absl::ResourceExhaustedError(StrCat("the server has ", slots.limit(), " calls in work, which is its limit")),
      reason::kTooManyCalls);
}

absl::Status CheckWanted(const StreamWriter& writer) {
  if (writer.cancelled()) return absl::CancelledError("the caller cancelled");
  if (writer.deadline() <= absl::Now()) return absl::DeadlineExceededError("the deadline passed before the call began");
  return absl::OkStatus();
}

void ReportRefusal(const ServiceContext& service, std::string_view method, const std::string& model,
                   const absl::Status& status) {
  if (method.empty()) return;
  CallObservation observation;
  if (service.catalog->Find(model).ok()) observation.model = model;
  observation.method = method;
  observation.code = status.code();
  service.observer->OnCallEnd(observation);
}

}  // namespace gatehouse
