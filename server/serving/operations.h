#ifndef GATEHOUSE_SERVER_SERVING_OPERATIONS_H_
#define GATEHOUSE_SERVER_SERVING_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/experiment.h"
#include "server/serving/model_catalog.h"

namespace gatehouse {

enum class OperationState { kWaiting, kRunning, kSucceeded, kFailed, kCancelled, kInterrupted };

// "waiting", "running", "succeeded", "failed", "cancelled", "interrupted".
std::string_view NameOf(OperationState state);
inline bool IsDone(OperationState state) {
  return state != OperationState::kWaiting && state != OperationState::kRunning;
}

// A long-running operation as its users see it; proto/gatehouse/v1/operations.proto
// documents the fields.
struct OperationStatus {
  std::string name;  // "operations/REPLICA/ID"
  std::string kind;
  std::string model;
  OperationState state = OperationState::kWaiting;
  double progress = 0;
  std::string stage;
  std::string created, ended;  // RFC 3339
  absl::Status error;          // why it failed
  std::string result;          // for a calibration, its name; for an experiment, "report.json"
  uint64_t result_bytes = 0;
  std::vector<std::string> files;  // once it has ended, what it left
  bool done() const { return IsDone(state); }
};

// What this replica has to do and did, for gauges.
struct OperationLoad {
  // Of every kind and state: how many wait or run now, and how many ended since the start.
  std::map<std::string, std::map<OperationState, int64_t>> counts;
  double progress = 0;  // of the one that runs, in [0, 1]
};

struct CalibrateSpec {
  std::string corpus;  // "corpora/SHA256"
  CalibrateOptions options;
  bool activate = true;
};

struct ExperimentRequest {
  std::vector<std::string> corpora;  // "corpora/SHA256"
  ExperimentSpec spec;
  std::string resume;  // an earlier training's name; empty: none
};

using OperationSpec = std::variant<CalibrateSpec, ExperimentRequest>;

struct OperationsOptions {
  std::string state_dir;
  std::string replica;  // letters, digits, '.', '_' and '-'
  int64_t corpus_limit_bytes = int64_t{256} << 20;
  int max_waiting = 16;
  // Older ones are removed with their files: operations that have ended, oldest end first,
  // and corpora that no unfinished operation reads, in the order of their last use.  At
  // least 1.
  int keep_operations = 1000;
  int keep_corpora = 100;
};

// Uploaded corpora, content-addressed files under <state_dir>/corpora.
class CorpusUpload {
 public:
  virtual ~CorpusUpload() = default;  // an unfinished upload leaves nothing behind
  // ResourceExhausted over the limit or when the disk is full.
  virtual absl::Status Append(std::string_view bytes) = 0;
  struct Corpus {
    std::string name;  // "corpora/SHA256"
    uint64_t size_bytes = 0;
  };
  // InvalidArgument when empty or not UTF-8.
  virtual absl::StatusOr<Corpus> Finish() = 0;
};

// Runs long work one operation at a time on a thread of its own, beside the scheduler.
// State is one JSON file an operation under <state_dir>/operations, written atomically;
// operations that this replica was running when it stopped are marked interrupted at
// Create.  What experiments leave is in a folder each under <state_dir>/results.  Those of
// other replicas that share the directory can be read.  Thread-safe.
class OperationManager {
 public:
  static absl::StatusOr<std::unique_ptr<OperationManager>> Create(const ModelCatalog& catalog,
                                                                  OperationsOptions options);
  virtual ~OperationManager() = default;

  virtual absl::StatusOr<std::unique_ptr<CorpusUpload>> BeginUpload(std::string display_name) = 0;

  virtual absl::StatusOr<OperationStatus> Start(const std::string& model, OperationSpec spec) = 0;
  virtual absl::StatusOr<OperationStatus> Get(const std::string& name) const = 0;
  virtual absl::StatusOr<OperationStatus> Cancel(const std::string& name) = 0;
  // Never waits for an operation.
  virtual OperationLoad Load() const = 0;
  // Newest first; `page_token` from the page before, empty for the first.
  struct Page {
    std::vector<OperationStatus> operations;
    std::string next_page_token;
  };
  virtual absl::StatusOr<Page> List(int page_size, const std::string& page_token) const = 0;
  // Path of one of the operation's files; `file` empty: of its result.  FailedPrecondition
  // when it has none (yet); NotFound for a file it did not leave, or that was deleted.
  virtual absl::StatusOr<std::string> ResultPath(const std::string& name, const std::string& file = "") const = 0;
  // An experiment's report.  The same errors; DataLoss for a damaged one.
  virtual absl::StatusOr<Report> ReadReport(const std::string& name) const = 0;

  // Calls `changed` (from any thread, quickly, never after Unwatch returns) with the
  // state now and at each change; the last call has done() set.  FailedPrecondition
  // for another replica's operation that is still running.
  using Changed = std::function<void(const OperationStatus&)>;
  virtual absl::StatusOr<uint64_t> Watch(const std::string& name, Changed changed) = 0;
  virtual void Unwatch(uint64_t watch) = 0;

  // Cancels what runs, marks it interrupted, joins.  Called by the destructor.
  virtual void Shutdown() = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OPERATIONS_H_
