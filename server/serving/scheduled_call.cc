#include "server/serving/scheduled_call.h"

#include <utility>

#include "absl/time/clock.h"
#include "server/base/error_reason.h"

namespace gatehouse {

ScheduledCall::ScheduledCall(std::unique_ptr<Task> task, absl::Time deadline, absl::Time started,
                             std::shared_ptr<WakeSignal> wake)
    : task_(std::move(task)),
      deadline_(deadline),
      started_(started),
      prompt_tokens_(task_->prompt_tokens()),
      wake_(std::move(wake)) {}

// A transport cancels the calls whose deadline has passed: that is not the caller's
// doing.
void ScheduledCall::Cancel() {
  Stop(absl::Now() >= deadline_ ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
}

void ScheduledCall::Stop(absl::StatusCode why) {
  absl::StatusCode none = absl::StatusCode::kOk;
  why_.compare_exchange_strong(none, why);
  stop_.store(true);
  wake_->Notify();
}

absl::Status ScheduledCall::stop_status(absl::Time now) const {
  switch (why_.load()) {
    case absl::StatusCode::kOk:
      break;
    case absl::StatusCode::kCancelled:
      return absl::CancelledError("cancelled by the caller");
    case absl::StatusCode::kUnavailable:
      return WithReason(absl::UnavailableError("the server is shutting down"), reason::kDraining);
    default:
      return absl::DeadlineExceededError("the call's deadline has passed");
  }
  if (now >= deadline_) return absl::DeadlineExceededError("the call's deadline has passed");
  return absl::OkStatus();
}

}  // namespace gatehouse
