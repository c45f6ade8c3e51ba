#ifndef GATEHOUSE_TESTS_ENGINE_TEST_MODELS_H_
#define GATEHOUSE_TESTS_ENGINE_TEST_MODELS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/model/decoder.h"
#include "server/engine/model/kv_cache.h"
#include "server/engine/model/weights.h"
#include "server/engine/step.h"

namespace gatehouse::testing {

// Positions that the calibrations of these tests take for sinks.
inline constexpr int kSinks = 4;

// A model in memory with random weights, biases and norms, whose shape has nothing
// square in it that could hide a transposition.
struct TestModelOptions {
  Architecture architecture = Architecture::kGpt2;
  at::ScalarType dtype = at::kFloat;
  int layers = 3;
  int context = 96;
  uint64_t seed = 1;
};
ModelWeights MakeTestModel(const TestModelOptions& options);

// A calibration of random surrogates, gates, ladders and neuron lists for `model`; every
// layer gateable.  Gates open for about half of the tokens.
struct TestCalibrationOptions {
  int sink_positions = 4;
  uint64_t seed = 2;
  float gate_bias = 0;
  int ladder_neurons = 23;  // 0: no ladders
};
CalibrationData MakeTestCalibrationData(const ModelWeights& model, const TestCalibrationOptions& options);
std::shared_ptr<const LoadedCalibration> MakeTestCalibration(const ModelWeights& model,
                                                             const TestCalibrationOptions& options);

// What policies and samplers are checked against.
ModelInfo InfoOf(const ModelWeights& model);

RoutingPolicy MakePolicy(const ModelWeights& model, const GatingRequest& request,
                         std::shared_ptr<const Calibration> calibration);

// Pseudo-random token ids of the model's vocabulary.
std::vector<int32_t> RandomTokens(const ModelWeights& model, int count, uint64_t seed);

// What rows change and capture.
struct RowChanges {
  const InterventionPlan* interventions = nullptr;
  std::span<const CaptureSite> captures = {};
  int position_offset = 0;
};

// A model with what runs it.
class TestEngine {
 public:
  explicit TestEngine(ModelWeights model, const std::string& kernels = "auto", int64_t kv_bytes = int64_t{1} << 24);
  TestEngine(ModelWeights model, std::unique_ptr<Kernels> kernels, int64_t kv_bytes = int64_t{1} << 24);

  const ModelWeights& model() const { return model_; }
  KvCache& cache() { return *cache_; }
  Decoder& decoder() { return decoder_; }

  SequenceId Open() { return cache_->Open(model_.config.context).value(); }

  RowResult StepOne(const Row& row) { return decoder_.Step({&row, 1}).front(); }

  // Runs `tokens` in pieces of `chunk` through a sequence, and answers the log-
  // probability of each token but the first, and the records of all.
  struct Run {
    absl::Status status;
    std::vector<float> logprobs;
    std::vector<uint32_t> linear_tokens, ladder_tokens, skip_tokens, gated_tokens, quorum_tokens;
    std::vector<TokenRecords> records;   // of each piece
    std::vector<CapturedSite> captured;  // of all pieces together
  };
  Run Score(SequenceId sequence, const std::vector<int32_t>& tokens, const RoutingPolicy& policy,
            std::vector<int> chunks, const RecordRequest& records = {}, const RowChanges& changes = {});

  // Like Score, in a sequence of its own.
  Run Score(const std::vector<int32_t>& tokens, const RoutingPolicy& policy, std::vector<int> chunks,
            const RecordRequest& records = {}, const RowChanges& changes = {});

 private:
  const ModelWeights model_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<KvCache> cache_;
  Decoder decoder_;
};

// Log-probabilities of ids[1..] under logits [tokens, vocab] float32.
std::vector<float> LogprobsOf(const at::Tensor& logits, const std::vector<int32_t>& ids);

// ids as [1, tokens] int64.
at::Tensor IdTensor(const std::vector<int32_t>& ids);

// The largest absolute difference; infinite where the sizes differ or a value is NaN.
double MaxDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_TEST_MODELS_H_
