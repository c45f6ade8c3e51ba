#ifndef GATEHOUSE_SERVER_SERVING_MODEL_LANE_H_
#define GATEHOUSE_SERVER_SERVING_MODEL_LANE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/serving/deadline_timer.h"
#include "server/serving/model_catalog.h"
#include "server/serving/observer.h"
#include "server/serving/scheduled_call.h"
#include "server/serving/scheduler.h"
#include "server/serving/task.h"

namespace gatehouse {

// The calls of one model: those that wait, first come first served, and those that
// run, a row each in every step.  Owned by the scheduler.
class ModelLane {
 public:
  ModelLane(ServedModel& model, const SchedulerOptions& options, Observer& observer, DeadlineTimer& timer);

  ServedModel& model() const { return model_; }

  // Any thread.

  // ResourceExhausted when a call of `prompt_tokens` may not wait now; Unavailable when
  // draining.
  absl::Status CheckRoom(int64_t prompt_tokens) const;
  // Takes the call, or refuses it as CheckRoom says.
  absl::Status Enqueue(const std::shared_ptr<ScheduledCall>& call);
  // Ends a call that has been stopped, where it waits; one that runs ends with its step.
  void EndIfWaiting(const std::shared_ptr<ScheduledCall>& call);
  ModelLoad Load() const;
  // From now on no call is taken.
  void Drain();
  // Stops every call there is.
  void AbortAll();

  // The scheduler's thread only.

  // One round: ends the calls that have to stop, admits waiting ones, runs one step.
  // False when no call had a row to run.
  bool RunRound();
  bool empty() const;
  // When the next call's reader will have been too slow for too long.
  absl::Time NextStall() const;

 private:
  using Calls = std::vector<std::shared_ptr<ScheduledCall>>;

  // One step: the calls' rows, and what is needed to hand their results back.
  struct Batch {
    std::vector<ScheduledCall*> calls;
    std::vector<Row> rows;
    std::vector<Phase> phases;
    int tokens = 0;
  };

  absl::Status CheckRoomLocked(int64_t prompt_tokens) const;
  void EndStoppedCalls(absl::Time now);
  void AdmitWaitingCalls(absl::Time now);
  // False when it has to wait for memory.
  bool Admit(const std::shared_ptr<ScheduledCall>& call, absl::Time now);
  Batch CollectRows(absl::Time now);
  void Deliver(ScheduledCall& call, const Row& row, Phase phase, RowResult result);
  // Closes the call's sequence, tells the observer, then its sink; last of all, by whoever
  // took the call out of `waiting_` or `running_`.
  void End(const std::shared_ptr<ScheduledCall>& call, const absl::Status& status);
  void EndRunning(ScheduledCall& call, const absl::Status& status);

  ServedModel& model_;
  const SchedulerOptions options_;
  Observer& observer_;
  DeadlineTimer& timer_;

  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<ScheduledCall>> waiting_;  // guarded by mutex_
  const ScheduledCall* admitting_ = nullptr;            // guarded by mutex_; of waiting_, the scheduler's thread has it
  int64_t waiting_prompt_tokens_ = 0;                   // guarded by mutex_
  bool memory_full_ = false;                            // guarded by mutex_; the first waiting call found no room
  bool draining_ = false;                               // guarded by mutex_
  Calls running_;  // changed by the scheduler's thread under mutex_, so that it may read without
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_MODEL_LANE_H_
