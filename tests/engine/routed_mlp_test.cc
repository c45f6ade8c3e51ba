#include "server/engine/gating/routed_mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "server/engine/training/plain_forward.h"
#include "tests/engine/counting_kernels.h"
#include "tests/engine/test_models.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::CountingKernels;
using ::gatehouse::testing::IdTensor;
using ::gatehouse::testing::InfoOf;
using ::gatehouse::testing::KernelCalls;
using ::gatehouse::testing::LogprobsOf;
using ::gatehouse::testing::MakePolicy;
using ::gatehouse::testing::MakeTestCalibration;
using ::gatehouse::testing::MakeTestModel;
using ::gatehouse::testing::MaxDifference;
using ::gatehouse::testing::RandomTokens;
using ::gatehouse::testing::TestEngine;

class RoutedMlpOf : public ::testing::TestWithParam<Architecture> {
 protected:
  RoutedMlpOf() : engine_(MakeTestModel({.architecture = GetParam()}), Kernels()) {
    calibration_ = MakeTestCalibration(engine_.model(), {.sink_positions = testing::kSinks});
  }

  std::unique_ptr<CountingKernels> Kernels() {
    return std::make_unique<CountingKernels>(MakeKernels("auto", at::kCPU, at::kFloat).value(), calls_);
  }

  RoutingPolicy Policy(GatingMode mode, std::optional<float> threshold = {}, std::vector<int> layers = {}) {
    GatingRequest request;
    request.mode = mode;
    request.threshold = threshold;
    request.layers = std::move(layers);
    return MakePolicy(engine_.model(), request, calibration_);
  }

  // Rows of MLPs `weights` that went through a product, all its parts taken together.
  int64_t RowsThroughMlp(int layer) { return calls_.RowsThrough(engine_.model().layers[layer].mlp_in); }
  int64_t RowsThroughSurrogate(int layer) { return calls_.RowsThrough(calibration_->layer(layer).surrogate); }

  KernelCalls calls_;
  TestEngine engine_;
  std::shared_ptr<const LoadedCalibration> calibration_;
};

INSTANTIATE_TEST_SUITE_P(All, RoutedMlpOf,
                         ::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama),
                         [](const auto& info) {
                           return std::string(info.param == Architecture::kGpt2      ? "gpt2"
                                              : info.param == Architecture::kGptNeoX ? "neox"
                                                                                     : "llama");
                         });

// x w + b of one token in double, with plain loops.  x [in] double, weight [out, in].
std::vector<double> Affine(const std::vector<double>& x, const LinearWeights& linear) {
  const at::Tensor weight = linear.weight.to(at::kDouble).contiguous();
  const at::Tensor bias = linear.bias.to(at::kDouble).contiguous();
  const double* w = weight.const_data_ptr<double>();
  std::vector<double> y(weight.size(0));
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = bias.const_data_ptr<double>()[o];
    for (size_t i = 0; i < x.size(); ++i) y[o] += *w++ * x[i];
  }
  return y;
}

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

at::Tensor ToTensor(const std::vector<double>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  for (size_t i = 0; i < values.size(); ++i) tensor.mutable_data_ptr<float>()[i] = static_cast<float>(values[i]);
  return tensor;
}

// The definition of gating, token by token: both paths are there, one is taken.
struct Reference {
  std::vector<float> logprobs;
  std::vector<uint32_t> linear_tokens;
  double smallest_margin = 1;
};

Reference ReferenceRun(const ModelWeights& model, const std::vector<int32_t>& tokens, const RoutingPolicy& policy) {
  Reference reference;
  reference.linear_tokens.assign(model.config.layers, 0);
  const LoadedCalibration& calibration = LoadedCalibration::From(*policy.calibration());
  const MlpFn mlp = [&](int layer, const at::Tensor& x) {
    const at::Tensor full = PlainMlp(model, layer, x);
    std::vector<at::Tensor> outputs;
    for (int64_t position = 0; position < x.size(1); ++position) {
      const std::vector<double> token = ToDoubles(x[0][position]);
      bool linear = policy.rule(layer) == RoutingPolicy::Rule::kLinear;
      if (policy.rule(layer) == RoutingPolicy::Rule::kGated) {
        const std::vector<double> weight = ToDoubles(calibration.layer(layer).gate_weight);
        double z = calibration.layer(layer).gate_bias;
        for (size_t i = 0; i < token.size(); ++i) z += token[i] * weight[i];
        const double margin = 1 / (1 + std::exp(-z)) - policy.thresholds(layer).linear_threshold;
        if (position >= testing::kSinks)
          reference.smallest_margin = std::min(reference.smallest_margin, std::abs(margin));
        linear = margin > 0;
      }
      linear = linear && position >= testing::kSinks;
      reference.linear_tokens[layer] += linear ? 1 : 0;
      outputs.push_back(linear ? ToTensor(Affine(token, calibration.layer(layer).surrogate)) : full[0][position]);
    }
    return at::stack(outputs).unsqueeze(0);
  };
  reference.logprobs = LogprobsOf(PlainForward(model, IdTensor(tokens), mlp)[0], tokens);
  return reference;
}

TEST_P(RoutedMlpOf, AllLinearEqualsAnIndependentSurrogate) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 60, 3);
  for (const std::vector<int>& layers : std::vector<std::vector<int>>{{}, {1}}) {
    const RoutingPolicy policy = Policy(GatingMode::kLinear, {}, layers);
    const Reference reference = ReferenceRun(engine_.model(), tokens, policy);
    for (const int chunk : {1, 16, 60}) {
      const TestEngine::Run run = engine_.Score(tokens, policy, {chunk});
      ASSERT_TRUE(run.status.ok()) << run.status;
      EXPECT_LE(MaxDifference(run.logprobs, reference.logprobs), 1e-4) << "chunk " << chunk;
      EXPECT_EQ(run.linear_tokens, reference.linear_tokens);
    }
  }
}

TEST_P(RoutedMlpOf, GatedEqualsTheDefinitionTokenByToken) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 60, 3);
  for (const float threshold : {0.0f, 0.3f, 0.5f, 0.8f}) {
    const RoutingPolicy policy = Policy(GatingMode::kGated, threshold);
    const Reference reference = ReferenceRun(engine_.model(), tokens, policy);
    ASSERT_GT(reference.smallest_margin, 1e-6) << "a gate too close to its threshold to compare: take another seed";
    for (const int chunk : {1, 16, 60}) {
      const TestEngine::Run run = engine_.Score(tokens, policy, {chunk});
      ASSERT_TRUE(run.status.ok()) << run.status;
      EXPECT_EQ(run.linear_tokens, reference.linear_tokens) << "threshold " << threshold << ", chunk " << chunk;
      EXPECT_LE(MaxDifference(run.logprobs, reference.logprobs), 1e-4);
    }
    if (threshold == 0.5f) {
      for (const uint32_t linear : reference.linear_tokens) {
        EXPECT_GT(linear, 5u);  // both paths are exercised
        EXPECT_LT(linear, 50u);
      }
    }
  }
}

TEST_P(RoutedMlpOf, ThresholdOneHasTheBitsOfTheFullModel) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 60, 3);
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine_.model()));
  const RoutingPolicy one = Policy(GatingMode::kGated, 1.0f);
  for (const int chunk : {1, 16, 60}) {
    const TestEngine::Run run = engine_.Score(tokens, one, {chunk});
    EXPECT_EQ(run.logprobs, engine_.Score(tokens, full, {chunk}).logprobs);
    EXPECT_EQ(run.linear_tokens, std::vector<uint32_t>(engine_.model().config.layers, 0));
  }
}

TEST_P(RoutedMlpOf, AHigherThresholdNeverSendsMoreOfTheSameInputsLinear) {
  // Layer 0 sees the same inputs whatever the threshold.
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 60, 3);
  uint32_t before = 60;
  for (const float threshold : {0.0f, 0.2f, 0.4f, 0.6f, 0.8f, 0.99f, 1.0f}) {
    const uint32_t linear = engine_.Score(tokens, Policy(GatingMode::kGated, threshold), {60}).linear_tokens[0];
    EXPECT_LE(linear, before);
    before = linear;
  }
  EXPECT_EQ(before, 0u);
}

TEST_P(RoutedMlpOf, ComputesOnlyThePathTaken) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 60, 3);
  const int layers = engine_.model().config.layers;
  for (const int chunk : {1, 16, 60}) {
    calls_.linear_rows.clear();
    engine_.Score(tokens, Policy(GatingMode::kLinear), {chunk});
    for (int layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(RowsThroughMlp(layer), testing::kSinks);
      EXPECT_EQ(RowsThroughSurrogate(layer), 60 - testing::kSinks);
    }
    calls_.linear_rows.clear();
    engine_.Score(tokens, RoutingPolicy::Full(InfoOf(engine_.model()), calibration_), {chunk});
    for (int layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(RowsThroughMlp(layer), 60);
      EXPECT_EQ(RowsThroughSurrogate(layer), 0);
    }
    calls_.linear_rows.clear();
    const TestEngine::Run run = engine_.Score(tokens, Policy(GatingMode::kGated, 0.5f), {chunk});
    for (int layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(RowsThroughSurrogate(layer), run.linear_tokens[layer]);
      EXPECT_EQ(RowsThroughMlp(layer), 60 - run.linear_tokens[layer]);
    }
  }
}

TEST_P(RoutedMlpOf, RecordsDoNotChangeTheNumbers) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 60, 3);
  for (const RoutingPolicy& policy :
       {Policy(GatingMode::kGated, 0.5f), Policy(GatingMode::kLinear), Policy(GatingMode::kFull)}) {
    for (const int chunk : {1, 16, 60}) {
      const TestEngine::Run without = engine_.Score(tokens, policy, {chunk});
      const TestEngine::Run with =
          engine_.Score(tokens, policy, {chunk}, {.routing = true, .nonlinearity = true, .consensus = true});
      ASSERT_TRUE(with.status.ok()) << with.status;
      EXPECT_EQ(with.logprobs, without.logprobs);
      EXPECT_EQ(with.linear_tokens, without.linear_tokens);
      EXPECT_EQ(without.records.front().tokens, 0);
    }
  }
}

// What the plain path says of each token and layer of the full model.
struct Expected {
  std::vector<std::vector<double>> x;           // [layer][token · d_model]
  std::vector<std::vector<double>> output;      // likewise
  std::vector<std::vector<double>> activation;  // [layer][token · d_mlp]
};

Expected Observe(const ModelWeights& model, const std::vector<int32_t>& tokens) {
  Expected expected;
  PlainForward(model, IdTensor(tokens), [&](int layer, const at::Tensor& x) {
    at::Tensor activations;
    const at::Tensor y = PlainMlp(model, layer, x, &activations);
    expected.x.push_back(ToDoubles(x));
    expected.output.push_back(ToDoubles(y));
    expected.activation.push_back(ToDoubles(activations));
    return y;
  });
  return expected;
}

TEST_P(RoutedMlpOf, MeasuresNonlinearityAndConsensusOfTheFullPath) {
  const ModelWeights& model = engine_.model();
  const size_t d = model.config.d_model;
  const std::vector<int32_t> tokens = RandomTokens(model, 40, 3);
  const Expected expected = Observe(model, tokens);
  for (const int chunk : {1, 40}) {
    const TestEngine::Run run = engine_.Score(tokens, RoutingPolicy::Full(InfoOf(model), calibration_), {chunk},
                                              {.routing = true, .nonlinearity = true, .consensus = true});
    ASSERT_TRUE(run.status.ok()) << run.status;
    for (size_t token = 0; token < tokens.size(); ++token) {
      const TokenRecords& records = run.records[token / chunk];
      for (int layer = 0; layer < model.config.layers; ++layer) {
        const size_t cell = (token % chunk) * model.config.layers + layer;
        const std::vector<double> x(expected.x[layer].begin() + token * d, expected.x[layer].begin() + (token + 1) * d);
        const std::vector<double> surrogate = Affine(x, calibration_->layer(layer).surrogate);
        double residual = 0, norm = 0;
        for (size_t i = 0; i < d; ++i) {
          const double y = expected.output[layer][token * d + i];
          norm += y * y;
          residual += (y - surrogate[i]) * (y - surrogate[i]);
        }
        EXPECT_NEAR(records.nonlinearity[cell], std::sqrt(residual), 1e-4 * std::sqrt(residual));
        EXPECT_NEAR(records.output_norm[cell], std::sqrt(norm), 1e-4 * std::sqrt(norm));
        EXPECT_EQ(records.path[cell], MlpPath::kFull);
        EXPECT_TRUE(std::isnan(records.gate_margin[cell]));

        const auto fires = [&](int neuron) {
          const double activation = expected.activation[layer][token * model.config.d_mlp + neuron];
          EXPECT_GT(std::abs(activation - 0.1), 1e-5) << "too close to the firing threshold: take another seed";
          return activation > 0.1;
        };
        const LayerCalibration& info = calibration_->info().layers[layer];
        uint64_t fired = 0;
        for (size_t i = 0; i < info.consensus.size(); ++i) {
          fired |= uint64_t{fires(info.consensus[i].neuron)} << i;
        }
        EXPECT_EQ(records.fired[cell], fired);
        EXPECT_EQ(records.level[cell], std::popcount(fired));
        EXPECT_EQ(records.exceptions[cell], uint64_t{fires(info.exception[0].neuron)});
      }
    }
  }
}

TEST_P(RoutedMlpOf, SaysThatALinearTokensNeuronsDoNotExist) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), 40, 3);
  const RoutingPolicy policy = Policy(GatingMode::kGated, 0.5f, {0, 2});
  const TestEngine::Run run =
      engine_.Score(tokens, policy, {40}, {.routing = true, .nonlinearity = true, .consensus = true});
  ASSERT_TRUE(run.status.ok()) << run.status;
  const TokenRecords& records = run.records.front();
  ASSERT_EQ(records.layers, 3);
  std::vector<uint32_t> linear_tokens(3, 0);
  for (int token = 0; token < 40; ++token) {
    for (int layer = 0; layer < 3; ++layer) {
      const size_t cell = token * 3 + layer;
      const bool linear = records.path[cell] == MlpPath::kLinear;
      linear_tokens[layer] += linear ? 1 : 0;
      EXPECT_EQ(std::isnan(records.nonlinearity[cell]), linear);
      EXPECT_EQ(records.level[cell] == -1, linear);
      EXPECT_GT(records.output_norm[cell], 0);
      EXPECT_EQ(std::isnan(records.gate_margin[cell]), token < testing::kSinks || layer == 1);
      if (!std::isnan(records.gate_margin[cell])) {
        EXPECT_EQ(records.gate_margin[cell] > 0, linear);
      }
      if (linear) {
        EXPECT_EQ(records.fired[cell], 0u);
      }
    }
  }
  EXPECT_EQ(linear_tokens, run.linear_tokens);
  EXPECT_GT(linear_tokens[0] + linear_tokens[2], 0u);
}

}  // namespace
}  // namespace gatehouse
