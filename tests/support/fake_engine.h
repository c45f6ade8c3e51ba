#ifndef GATEHOUSE_TESTS_SUPPORT_FAKE_ENGINE_H_
#define GATEHOUSE_TESTS_SUPPORT_FAKE_ENGINE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/serving/model_catalog.h"

namespace gatehouse::testing {

struct FakeEngineOptions {
  int layers = 3;
  int vocab_size = 260;  // three more than the tokens of FakeTokenizer
  int context = 64;
  int64_t kv_pages = 1024;
  int page_tokens = 16;
  std::vector<int32_t> eos_token_ids = {256};
  std::string fingerprint = "sha256:fake";
};

// That many token ids that FakeEngine knows: 3, 4, 5...
std::vector<int32_t> Ids(int count);

// An engine without weights, for tests of what lies above it: the next token's
// distribution is a hash of the tokens so far and of the paths they took, so every
// mistake in feeding, rolling back or routing shows.  It can be made to wait, to fail
// and to run out of memory.  It holds callers to the façade's rules: a broken one ends
// the test program with a message.  Thread-safe where Engine is; the controls always.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});

  const ModelInfo& info() const override { return info_; }
  absl::StatusOr<SequenceId> Open(int max_tokens) override;
  void Close(SequenceId sequence) override;
  absl::Status Rollback(SequenceId sequence, int length) override;
  int Length(SequenceId sequence) const override;
  KvUsage kv_usage() const override;
  absl::StatusOr<std::vector<RowResult>> Step(std::span<const Row> rows) override;
  absl::StatusOr<std::shared_ptr<const Calibration>> LoadCalibration(const std::string& path) override;
  absl::StatusOr<CalibrationInfo> ReadCalibrationInfo(const std::string& path) override;
  absl::StatusOr<CalibrationInfo> Calibrate(const CalibrateOptions& options, std::span<const int32_t> tokens,
                                            const std::string& path, const ProgressFn& progress,
                                            const std::atomic<bool>& cancelled) override;
  // A report with one table, a row a corpus, and one array; waits as calibrations do.  A
  // training writes the file "checkpoint" at once, one line longer than the one it finds, and
  // a model's folder where asked to.
  absl::StatusOr<ExperimentResult> RunExperiment(const ExperimentSpec& spec, std::span<const Corpus> corpora,
                                                 const std::string& directory, const ProgressFn& progress,
                                                 const std::atomic<bool>& cancelled) override;

  // ---- Controls

  // Steps wait, before the first layer, until released.
  void BlockSteps();
  void ReleaseSteps();
  // Lets the waiting step, or the next one, go; the one after it waits again.
  void ReleaseOneStep();
  // Returns once a step waits.
  void WaitUntilBlocked();
  // Returns once a row of the waiting step has been told to stop.
  void WaitUntilARowIsStopped();

  void FailNextStep(absl::Status status);
  void FailOpens(absl::Status status);  // OK ends it
  // Rows that hold the token end as Internal.
  void ProduceNanAt(int32_t token);
  // Rows that sample the token at `position` of their sequence sample this one.
  void SetTokenAt(int position, int32_t token);
  // The linear path's probability in every layer and at every token, instead of a hash.
  void SetGate(float p);

  void BlockCalibrations();
  void ReleaseCalibrations();
  void WaitUntilCalibrating();
  void FailCalibrations(absl::Status status);
  // What experiments return, instead of their own.
  void SetExperimentResult(ExperimentResult result);

  // ---- What it saw

  struct SeenRow {
    SequenceId sequence{};
    int position = 0;
    std::vector<int32_t> tokens;
    bool sampled = false;
    RecordRequest records;
  };
  std::vector<std::vector<SeenRow>> steps() const;
  int open_sequences() const;
  int calibrations_loaded() const;
  // The tokens of the last Calibrate.
  std::vector<int32_t> calibrated_tokens() const;
  // The options of the last Calibrate, and the specification of the last RunExperiment.
  CalibrateOptions calibrate_options() const;
  ExperimentSpec experiment_spec() const;

  // log P(next token) after `tokens`, all in full: [vocabulary].
  std::vector<float> Logprobs(std::span<const int32_t> tokens) const;

 private:
  struct Sequence {
    int max_tokens = 0;
    std::vector<uint64_t> states;  // after each position
  };

  // What long work does before it has a result.
  absl::Status PretendToWork(std::span<const int32_t> tokens, const ProgressFn& progress,
                             const std::atomic<bool>& cancelled);
  RowResult RunRow(const Row& row);
  // The state after one more token; counts linear layers and records.
  uint64_t Advance(uint64_t state, int position, int32_t token, const Row& row, RowResult& result) const;
  // The state after the row's changes in one layer; takes what it captures there.
  uint64_t ChangeAndCapture(uint64_t state, int layer, int position, const Row& row, RowResult& result) const;
  std::vector<float> LogprobsOf(uint64_t state) const;
  SampledToken Sample(const Row& row, uint64_t state, int position) const;
  std::vector<TokenLogprob> Top(const std::vector<float>& logprobs, int count) const;
  void WaitWhileBlocked(std::span<const Row> rows);
  int64_t PagesFor(int tokens) const;

  const FakeEngineOptions options_;
  ModelInfo info_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SequenceId, Sequence> sequences_;
  uint64_t next_sequence_ = 1;
  int64_t pages_used_ = 0;
  std::vector<std::vector<SeenRow>> steps_;
  bool steps_blocked_ = false;
  int steps_to_release_ = 0;
  bool step_waits_ = false;
  std::span<const Row> waiting_rows_;
  absl::Status next_step_error_, open_error_, calibration_error_;
  std::optional<int32_t> nan_token_;
  std::map<int, int32_t> token_at_;
  std::optional<float> gate_;
  bool calibrations_blocked_ = false, calibrating_ = false;
  int loaded_ = 0;
  std::vector<int32_t> calibrated_tokens_;
  CalibrateOptions calibrate_options_;
  ExperimentSpec experiment_spec_;
  std::optional<ExperimentResult> experiment_result_;
};

// One token a byte (id = byte), and "<|endoftext|>" (256).
std::unique_ptr<Tokenizer> FakeTokenizer();

// A calibration with `layers` layers for the fake engine's model, every one gateable, and
// with a ladder and neurons' means in all but the last; its operating points are "1%" and "5%".
CalibrationInfo FakeCalibrationInfo(const std::string& name, const FakeEngineOptions& options = {},
                                    const std::string& created = "2026-01-01T00:00:00Z");
// Writes it as the fake engine reads it.
absl::Status WriteFakeCalibration(const std::string& path, const CalibrationInfo& info);

// A model to serve; `engine`, when given, receives its engine.  Calibrations are looked
// for in, and written to, `calibrations_folder`.
ServedModel MakeFakeModel(const std::string& name, FakeEngineOptions options = {}, FakeEngine** engine = nullptr,
                          const std::string& calibrations_folder = "");

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_SUPPORT_FAKE_ENGINE_H_
