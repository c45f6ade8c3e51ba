#ifndef GATEHOUSE_SERVER_SERVING_SCHEDULED_CALL_H_
#define GATEHOUSE_SERVER_SERVING_SCHEDULED_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/step.h"
#include "server/serving/call.h"
#include "server/serving/task.h"
#include "server/serving/wake_signal.h"

namespace gatehouse {

// A call as the scheduler keeps it, from Start* until OnEnd.  Its caller holds it only
// as a Call, and may do so for as long as it likes: what the call computes with is
// freed when it ends.
class ScheduledCall final : public Call {
 public:
  ScheduledCall(std::unique_ptr<Task> task, absl::Time deadline, absl::Time started, std::shared_ptr<WakeSignal> wake);

  // Any thread.
  void Cancel() override;
  void Resume() override { wake_->Notify(); }
  // Its deadline has come.
  void Expire() { Stop(absl::StatusCode::kDeadlineExceeded); }
  // The server is shutting down.
  void Abort() { Stop(absl::StatusCode::kUnavailable); }

  // Why it has to end before it is complete; OK while it goes on.
  absl::Status stop_status(absl::Time now) const;
  // Set when it has to stop; rows are checked against it between layers.
  const std::atomic<bool>* stop_flag() const { return &stop_; }

  absl::Time deadline() const { return deadline_; }
  absl::Time started() const { return started_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }

  // Whoever has the call only: the scheduler's thread, or the one that ends it while it
  // waits; until `EndTask`.
  Task& task() { return *task_; }
  void EndTask() { task_.reset(); }

  std::optional<SequenceId> sequence;                // while it runs
  absl::Time admitted = absl::InfiniteFuture();      // when it began to run
  absl::Time unread_since = absl::InfiniteFuture();  // since when its reader is too slow

 private:
  void Stop(absl::StatusCode why);

  std::unique_ptr<Task> task_;
  const absl::Time deadline_, started_;
  const int64_t prompt_tokens_;
  const std::shared_ptr<WakeSignal> wake_;
  std::atomic<absl::StatusCode> why_{absl::StatusCode::kOk};  // the first reason wins
  std::atomic<bool> stop_{false};
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_SCHEDULED_CALL_H_
