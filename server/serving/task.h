#ifndef GATEHOUSE_SERVER_SERVING_TASK_H_
#define GATEHOUSE_SERVER_SERVING_TASK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/engine/step.h"
#include "server/serving/call.h"
#include "server/serving/model_catalog.h"
#include "server/serving/observer.h"

namespace gatehouse {

// What a task works with.
struct TaskContext {
  const ServedModel* model = nullptr;
  Observer* observer = nullptr;
  int prefill_chunk = 0;  // most positions of a row
};

// The work of one call, row by row: what goes through the model next, and what its
// result means for the caller.  Made and checked on the caller's thread, then used by
// the scheduler's alone; owned by its ScheduledCall.
class Task {
 public:
  // A row that goes on at `position` of the call's sequence; `row.sequence` and
  // `row.cancelled` are left to the scheduler.
  struct Next {
    int position = 0;
    Phase phase = Phase::kPrefill;
    Row row;
  };

  virtual ~Task() = default;

  // Most positions its sequence ever has.
  virtual int sequence_tokens() const = 0;
  // What it is in the queue's budget of prompt tokens.
  virtual int64_t prompt_tokens() const = 0;
  virtual CallSink& sink() const = 0;

  // Once, before the first row.
  virtual void OnAdmitted(double queue_seconds) = 0;
  // The same answer until its result is delivered.
  virtual Next NextRow() = 0;
  // Takes the result of the row that NextRow returned; true when that was the last and
  // the summary is sent.
  virtual absl::StatusOr<bool> Deliver(RowResult result) = 0;
  // Fills in what the task knows: method, finish reason, tokens, seconds.
  virtual void Describe(CallObservation& observation) const = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_TASK_H_
