#ifndef GATEHOUSE_SERVER_ENGINE_ENGINE_H_
#define GATEHOUSE_SERVER_ENGINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/experiment.h"
#include "server/engine/model_info.h"
#include "server/engine/routing.h"
#include "server/engine/sampling.h"
#include "server/engine/step.h"

namespace gatehouse {

struct EngineOptions {
  std::string device = "auto";          // "auto", "cpu" or "cuda"
  std::string dtype = "float32";        // "float32" or "bfloat16"
  std::string kernels = "auto";         // "auto", or a name to pin: "portable", "avx2", "avx512", "avx512_bf16"
  int64_t kv_bytes = int64_t{1} << 30;  // memory for keys and values
};

// How much of the memory for keys and values is in use.
struct KvUsage {
  int64_t pages_total = 0;
  int64_t pages_used = 0;
  int page_tokens = 0;
  int64_t page_bytes = 0;
};

// Reports progress in [0, 1] and what is being done.
using ProgressFn = std::function<void(double fraction, std::string_view stage)>;

// One model in memory, the façade the rest of the server sees: a step over a batch
// of rows.
//
// Threads: Step, Open, Close and Rollback are called by one thread at a time (the
// scheduler's).  Everything else may be called from any thread, also during a step:
// weights never change after loading.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelInfo& info() const = 0;

  // Opens an empty sequence with room for `max_tokens` positions.  ResourceExhausted
  // when the memory for keys and values has no room for it now; InvalidArgument when
  // it never will (more than the context, or than the whole memory).
  virtual absl::StatusOr<SequenceId> Open(int max_tokens) = 0;
  virtual void Close(SequenceId sequence) = 0;
  // Forgets the positions from `length` on.
  virtual absl::Status Rollback(SequenceId sequence, int length) = 0;
  virtual int Length(SequenceId sequence) const = 0;
  virtual KvUsage kv_usage() const = 0;

  // Runs each row's new positions through the model.  A row's numbers do not depend
  // on the other rows.  Fails as a whole only where no row could run (out of memory);
  // then every sequence is as it was.  No two rows may name the same sequence.
  virtual absl::StatusOr<std::vector<RowResult>> Step(std::span<const Row> rows) = 0;

  // Reads a calibration file for this model.  FailedPrecondition when it is another
  // model's; InvalidArgument when it is damaged.
  virtual absl::StatusOr<std::shared_ptr<const Calibration>> LoadCalibration(const std::string& path) = 0;

  // The description alone, without the tensors: cheap.
  virtual absl::StatusOr<CalibrationInfo> ReadCalibrationInfo(const std::string& path) = 0;

  // Calibrates the model on `tokens` (methods A.1-A.3, B.1, B.4) and writes the file at
  // `path` in one step.  Blocks for long; runs beside Step.  Cancelled soon after
  // `cancelled` is set, with nothing written.  InvalidArgument when the corpus is too
  // short for its splits.
  virtual absl::StatusOr<CalibrationInfo> Calibrate(const CalibrateOptions& options, std::span<const int32_t> tokens,
                                                    const std::string& path, const ProgressFn& progress,
                                                    const std::atomic<bool>& cancelled) = 0;

  // Runs an experiment (methods A.2-A.6, B.1-B.10) on its corpora and reports.  `directory` is its own:
  // what it keeps to be resumed, and the models it saves, lie there.  Blocks for long; runs
  // beside Step and never touches the weights that serve.  Cancelled soon after `cancelled`
  // is set.  InvalidArgument naming the option, also where a corpus is too short.
  virtual absl::StatusOr<ExperimentResult> RunExperiment(const ExperimentSpec& spec, std::span<const Corpus> corpora,
                                                         const std::string& directory, const ProgressFn& progress,
                                                         const std::atomic<bool>& cancelled) = 0;
};

// Loads a Hugging Face model directory.  NotFound for a missing file or tensor (named);
// InvalidArgument for a damaged file or an unknown architecture or setting (named);
// FailedPrecondition when the device is not there; ResourceExhausted when memory is.
absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const std::string& directory, const EngineOptions& options);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ENGINE_H_
