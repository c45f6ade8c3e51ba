#ifndef GATEHOUSE_SERVER_SERVING_OPERATION_WORK_H_
#define GATEHOUSE_SERVER_SERVING_OPERATION_WORK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/serving/corpora.h"
#include "server/serving/model_catalog.h"
#include "server/serving/operation_results.h"
#include "server/serving/operations.h"

namespace gatehouse {

// What one operation does: made, and all that it was told checked, when it is started; run
// once, on the operation manager's thread.  Owned by the manager.
class OperationWork {
 public:
  // Where it runs: the operation's id, and a folder of its own that does not exist yet.
  struct Place {
    std::string id;
    std::string folder;
  };
  struct Outcome {
    std::string result;  // of OperationStatus
    uint64_t result_bytes = 0;
  };

  virtual ~OperationWork() = default;

  virtual std::string kind() const = 0;
  // What no two operations may make at once: "a calibration named careful"; empty: nothing.
  virtual std::string claim() const { return ""; }
  // The corpora and operations, by name, that it will read.
  virtual std::vector<std::string> needs() const = 0;

  // Blocks for long; Cancelled soon after `cancelled` is set.
  virtual absl::StatusOr<Outcome> Run(const Place& place, const ProgressFn& progress,
                                      const std::atomic<bool>& cancelled) = 0;
};

// What work is made from.  Everything outlives the work but `find`.
struct WorkContext {
  const ServedModel& model;
  const CorpusStore& corpora;
  const OperationResults& results;
  // The state of an operation of this replica.  NotFound; FailedPrecondition for another's.
  std::function<absl::StatusOr<OperationStatus>(const std::string& name)> find;
};

absl::StatusOr<std::unique_ptr<OperationWork>> MakeCalibration(const WorkContext& context, CalibrateSpec spec);
absl::StatusOr<std::unique_ptr<OperationWork>> MakeExperiment(const WorkContext& context, ExperimentRequest request);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OPERATION_WORK_H_
