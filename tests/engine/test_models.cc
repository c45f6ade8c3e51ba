#include "tests/engine/test_models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <utility>

namespace gatehouse::testing {
namespace {

// Random tensors in a fixed order.
class RandomTensors {
 public:
  explicit RandomTensors(uint64_t seed) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

  at::Tensor Normal(at::IntArrayRef shape, double scale) { return at::randn(shape, generator_).mul_(scale); }
  at::Tensor Permutation(int64_t count) { return at::randperm(count, generator_, at::kLong); }

 private:
  at::Generator generator_;
};

LinearWeights MakeLinear(RandomTensors& random, int64_t out, int64_t in, at::ScalarType dtype, bool bias) {
  LinearWeights linear;
  linear.weight = random.Normal({out, in}, 1.5 / std::sqrt(static_cast<double>(in))).to(dtype);
  if (bias) linear.bias = random.Normal({out}, 0.3);
  return linear;
}

NormWeights MakeNorm(RandomTensors& random, const ModelConfig& config) {
  NormWeights norm;
  norm.weight = random.Normal({config.d_model}, 0.2).add_(1);
  if (config.norm == NormKind::kLayerNorm) norm.bias = random.Normal({config.d_model}, 0.2);
  return norm;
}

ModelConfig MakeConfig(const TestModelOptions& options) {
  ModelConfig config;
  config.architecture = options.architecture;
  config.layers = options.layers;
  config.d_model = 48;
  config.d_mlp = 80;
  config.heads = 4;
  config.kv_heads = 4;
  config.head_dim = 12;
  config.vocab_size = 131;
  config.context = options.context;
  config.eos_token_ids = {0};
  if (options.architecture == Architecture::kGptNeoX) {
    config.activation = Activation::kGeluErf;
    config.parallel_residual = true;
    config.rotary_dims = 6;
  } else if (options.architecture == Architecture::kLlama) {
    config.kv_heads = 2;
    config.norm = NormKind::kRmsNorm;
    config.activation = Activation::kSilu;
    config.gated_mlp = true;
    config.rotary_dims = 12;
  }
  for (int i = 0; i < config.rotary_dims / 2; ++i) {
    config.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / config.rotary_dims)));
  }
  return config;
}

}  // namespace

ModelWeights MakeTestModel(const TestModelOptions& options) {
  ModelWeights model;
  model.config = MakeConfig(options);
  const ModelConfig& config = model.config;
  const bool bias = options.architecture != Architecture::kLlama;
  RandomTensors random(options.seed);
  model.token_embedding = random.Normal({config.vocab_size, config.d_model}, 1).to(options.dtype);
  if (options.architecture == Architecture::kGpt2) {
    model.position_embedding = random.Normal({config.context, config.d_model}, 0.5).to(options.dtype);
  }
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights& layer = model.layers.emplace_back();
    layer.attention_norm = MakeNorm(random, config);
    layer.mlp_norm = MakeNorm(random, config);
    const int64_t qkv = int64_t{config.heads + 2 * config.kv_heads} * config.head_dim;
    layer.qkv = MakeLinear(random, qkv, config.d_model, options.dtype, bias);
    layer.attention_out =
        MakeLinear(random, config.d_model, int64_t{config.heads} * config.head_dim, options.dtype, bias);
    layer.mlp_in = MakeLinear(random, config.d_mlp * (config.gated_mlp ? 2 : 1), config.d_model, options.dtype, bias);
    layer.mlp_out = MakeLinear(random, config.d_model, config.d_mlp, options.dtype, bias);
  }
  model.final_norm = MakeNorm(random, config);
  model.output = MakeLinear(random, config.vocab_size, config.d_model, options.dtype, false);
  model.fingerprint = "sha256:test";
  return model;
}

CalibrationData MakeTestCalibrationData(const ModelWeights& model, const TestCalibrationOptions& options) {
  const ModelConfig& config = model.config;
  RandomTensors random(options.seed), random_ladders(options.seed + 1000), random_means(options.seed + 2000);
  std::mt19937_64 engine(options.seed);
  CalibrationData data;
  data.info.name = "test";
  data.info.model_fingerprint = model.fingerprint;
  data.info.sink_positions = options.sink_positions;
  const auto matrix = [&](RandomTensors& from) {
    return MakeLinear(from, config.d_model, config.d_model, at::kFloat, /*bias=*/true);
  };
  for (int i = 0; i < config.layers; ++i) {
    LayerCalibration& described = data.info.layers.emplace_back();
    described.gateable = true;
    CalibrationData::Layer& layer = data.layers.emplace_back();
    const LinearWeights surrogate = matrix(random), ladder = matrix(random_ladders);
    layer.surrogate_weight = surrogate.weight;
    layer.surrogate_bias = surrogate.bias;
    layer.gate_weight = random.Normal({config.d_model}, 0.3);
    layer.gate_bias = at::full({1}, options.gate_bias);
    layer.neuron_mean = random_means.Normal({config.d_mlp}, 1);
    for (int k = 0; k < 7; ++k) described.consensus.push_back({.neuron = static_cast<int>(engine() % config.d_mlp)});
    described.exception.push_back({.neuron = static_cast<int>(engine() % config.d_mlp)});
    if (options.ladder_neurons == 0) continue;
    layer.ladder_weight = ladder.weight;
    layer.ladder_bias = ladder.bias;
    layer.ladder_neurons =
        std::get<0>(at::sort(random_ladders.Permutation(config.d_mlp).narrow(0, 0, options.ladder_neurons)));
  }
  return data;
}

std::shared_ptr<const LoadedCalibration> MakeTestCalibration(const ModelWeights& model,
                                                             const TestCalibrationOptions& options) {
  return PlaceCalibration(MakeTestCalibrationData(model, options), model);
}

ModelInfo InfoOf(const ModelWeights& model) {
  ModelInfo info;
  info.layers = model.config.layers;
  info.d_model = model.config.d_model;
  info.d_mlp = model.config.d_mlp;
  info.gated_mlp = model.config.gated_mlp;
  info.vocab_size = model.config.vocab_size;
  info.context = model.config.context;
  info.fingerprint = model.fingerprint;
  return info;
}

RoutingPolicy MakePolicy(const ModelWeights& model, const GatingRequest& request,
                         std::shared_ptr<const Calibration> calibration) {
  return RoutingPolicy::Create(request, InfoOf(model), std::move(calibration)).value();
}

std::vector<int32_t> RandomTokens(const ModelWeights& model, int count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(engine() % model.config.vocab_size);
  return ids;
}

TestEngine::TestEngine(ModelWeights model, const std::string& kernels, int64_t kv_bytes)
    : TestEngine(model, MakeKernels(kernels, at::kCPU, model.token_embedding.scalar_type()).value(), kv_bytes) {}

TestEngine::TestEngine(ModelWeights model, std::unique_ptr<Kernels> kernels, int64_t kv_bytes)
    : model_(std::move(model)),
      kernels_(std::move(kernels)),
      cache_(KvCache::Create(model_.config, model_.token_embedding.scalar_type(), at::kCPU, kv_bytes).value()),
      decoder_(model_, *kernels_, *cache_) {}

TestEngine::Run TestEngine::Score(SequenceId sequence, const std::vector<int32_t>& tokens, const RoutingPolicy& policy,
                                  std::vector<int> chunks, const RecordRequest& records, const RowChanges& changes) {
  Run run;
  for (auto* counts :
       {&run.linear_tokens, &run.ladder_tokens, &run.skip_tokens, &run.gated_tokens, &run.quorum_tokens}) {
    counts->assign(model_.config.layers, 0);
  }
  run.captured.resize(changes.captures.size());
  std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
  targets.push_back(-1);
  size_t at = 0;
  for (size_t piece = 0; at < tokens.size(); ++piece) {
    const size_t wanted = piece < chunks.size() ? chunks[piece] : chunks.back();
    const size_t count = std::min(wanted, tokens.size() - at);
    Row row;
    row.sequence = sequence;
    row.tokens = std::span(tokens).subspan(at, count);
    row.targets = std::span<const int32_t>(targets).subspan(at, count);
    row.policy = &policy;
    row.records = records;
    row.interventions = changes.interventions;
    row.captures = changes.captures;
    row.position_offset = changes.position_offset;
    RowResult result = StepOne(row);
    run.status = result.status;
    if (!run.status.ok()) return run;
    run.logprobs.insert(run.logprobs.end(), result.target_logprobs.begin(), result.target_logprobs.end());
    for (int layer = 0; layer < model_.config.layers; ++layer) {
      run.linear_tokens[layer] += result.linear_tokens[layer];
      run.ladder_tokens[layer] += result.ladder_tokens[layer];
      run.skip_tokens[layer] += result.skip_tokens[layer];
      run.gated_tokens[layer] += result.gated_tokens[layer];
      run.quorum_tokens[layer] += result.quorum_tokens[layer];
    }
    for (size_t i = 0; i < result.captured.size(); ++i) {
      CapturedSite &from = result.captured[i], &to = run.captured[i];
      to.positions.insert(to.positions.end(), from.positions.begin(), from.positions.end());
      to.values.insert(to.values.end(), from.values.begin(), from.values.end());
    }
    run.records.push_back(std::move(result.records));
    at += count;
  }
  run.logprobs.pop_back();
  return run;
}

TestEngine::Run TestEngine::Score(const std::vector<int32_t>& tokens, const RoutingPolicy& policy,
                                  std::vector<int> chunks, const RecordRequest& records, const RowChanges& changes) {
  const SequenceId sequence = Open();
  Run run = Score(sequence, tokens, policy, std::move(chunks), records, changes);
  cache_->Close(sequence);
  return run;
}

std::vector<float> LogprobsOf(const at::Tensor& logits, const std::vector<int32_t>& ids) {
  const at::Tensor logprobs = at::log_softmax(logits.to(at::kDouble), -1).contiguous();
  const double* data = logprobs.const_data_ptr<double>();
  std::vector<float> out;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    out.push_back(static_cast<float>(data[static_cast<int64_t>(i) * logits.size(1) + ids[i + 1]]));
  }
  return out;
}

at::Tensor IdTensor(const std::vector<int32_t>& ids) {
  return at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong).unsqueeze(0);
}

double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= largest))
      largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
  return largest;
}

}  // namespace gatehouse::testing
