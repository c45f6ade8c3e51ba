#ifndef GATEHOUSE_SERVER_SERVING_SCHEDULER_H_
#define GATEHOUSE_SERVER_SERVING_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/serving/call.h"
#include "server/serving/model_catalog.h"
#include "server/serving/observer.h"
#include "server/serving/requests.h"

namespace gatehouse {

struct SchedulerOptions {
  // Calls that run at once, per model; more wait.
  int max_running = 32;
  // Calls that wait, per model; one more is refused with ResourceExhausted.
  int max_waiting = 256;
  // Prompt tokens that wait, per model.
  int64_t max_waiting_prompt_tokens = int64_t{1} << 20;
  // Positions of a prompt that go through the model in one step.
  int prefill_chunk = 256;
  // How long a call waits for its reader before it is given up.
  absl::Duration stall_limit = absl::Seconds(60);
};

// Runs calls on the engines: one thread takes the next row of every running call, lets
// the engine step over them together, and hands each result to its call.  Thread-safe.
//
// Start* validate the request (InvalidArgument and so on: see the protos), admit it or
// refuse it at once, and return; the sink hears the rest.  When Start* fails the sink is
// not called.
class Scheduler {
 public:
  // `catalog` and `observer` outlive the scheduler.
  static std::unique_ptr<Scheduler> Create(const ModelCatalog& catalog, const SchedulerOptions& options,
                                           Observer& observer);
  virtual ~Scheduler() = default;

  virtual absl::StatusOr<std::shared_ptr<Call>> StartGenerate(GenerateRequest request, const CallOptions& options,
                                                              std::shared_ptr<GenerationSink> sink) = 0;
  virtual absl::StatusOr<std::shared_ptr<Call>> StartScore(ScoreRequest request, const CallOptions& options,
                                                           std::shared_ptr<ScoreSink> sink) = 0;
  virtual absl::StatusOr<std::shared_ptr<Call>> StartAnalysis(AnalysisRequest request, const CallOptions& options,
                                                              std::shared_ptr<AnalysisSink> sink) = 0;

  virtual std::vector<ModelLoad> Load() const = 0;
  // Time since the scheduler's thread last went round its loop; it does so at least
  // every second when idle.  Large while a step hangs.
  virtual absl::Duration SinceHeartbeat() const = 0;

  // Refuses new calls with Unavailable; running ones go on.
  virtual void Drain() = 0;
  // Drains, cancels what still runs, and joins the thread.  Called by the destructor.
  virtual void Shutdown() = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_SCHEDULER_H_
