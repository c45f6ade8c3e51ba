#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "server/engine/gating/routed_mlp.h"
#include "tests/engine/counting_kernels.h"
#include "tests/engine/test_models.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::CountingKernels;
using ::gatehouse::testing::InfoOf;
using ::gatehouse::testing::KernelCalls;
using ::gatehouse::testing::MakePolicy;
using ::gatehouse::testing::MakeTestCalibrationData;
using ::gatehouse::testing::MakeTestModel;
using ::gatehouse::testing::MaxDifference;
using ::gatehouse::testing::RandomTokens;
using ::gatehouse::testing::TestEngine;

constexpr int kLadderTokens = 60;

class LadderOf : public ::testing::TestWithParam<std::tuple<Architecture, at::ScalarType>> {
 protected:
  LadderOf()
      : engine_(MakeTestModel({.architecture = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam())}), Counting()),
        data_(MakeTestCalibrationData(engine_.model(), {.sink_positions = testing::kSinks})),
        calibration_(PlaceCalibration(data_, engine_.model())),
        tokens_(RandomTokens(engine_.model(), kLadderTokens, 3)) {}

  std::unique_ptr<CountingKernels> Counting() {
    return std::make_unique<CountingKernels>(MakeKernels("auto", at::kCPU, std::get<1>(GetParam())).value(), calls_);
  }

  RoutingPolicy Policy(GatingMode mode, std::optional<float> threshold = {}, std::optional<float> ladder = {}) {
    GatingRequest request;
    request.mode = mode;
    request.threshold = threshold;
    request.ladder_threshold = ladder;
    return MakePolicy(engine_.model(), request, calibration_);
  }

  // A calibration with one operating point: the same thresholds in every layer.
  RoutingPolicy PolicyAt(OperatingLayer thresholds) {
    CalibrationData data = data_;
    OperatingPoint& point = data.info.operating_points.emplace_back();
    point.name = "point";
    point.layers.assign(data.layers.size(), thresholds);
    calibration_ = PlaceCalibration(data, engine_.model());
    GatingRequest request;
    request.mode = GatingMode::kGated;
    request.operating_point = "point";
    return MakePolicy(engine_.model(), request, calibration_);
  }

  TestEngine::Run Score(const RoutingPolicy& policy, int chunk, const RecordRequest& records = {}) {
    calls_ = {};
    TestEngine::Run run = engine_.Score(tokens_, policy, {chunk}, records);
    EXPECT_TRUE(run.status.ok()) << run.status;
    return run;
  }

  bool float32() const { return std::get<1>(GetParam()) == at::kFloat; }
  int layers() const { return engine_.model().config.layers; }

  KernelCalls calls_;
  TestEngine engine_;
  CalibrationData data_;
  std::shared_ptr<const LoadedCalibration> calibration_;
  std::vector<int32_t> tokens_;
};

INSTANTIATE_TEST_SUITE_P(All, LadderOf,
                         ::testing::Combine(::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX,
                                                              Architecture::kLlama),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           const Architecture architecture = std::get<0>(info.param);
                           return std::string(architecture == Architecture::kGpt2      ? "gpt2"
                                              : architecture == Architecture::kGptNeoX ? "neox"
                                                                                       : "llama") +
                                  (std::get<1>(info.param) == at::kFloat ? "_float32" : "_bfloat16");
                         });

std::vector<double> Doubles(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

double Act(double z, Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case Activation::kGeluErf:
      return 0.5 * z * (1 + std::erf(z / std::sqrt(2.0)));
    case Activation::kRelu:
      return std::max(z, 0.0);
    case Activation::kSilu:
      return z / (1 + std::exp(-z));
  }
  return z;
}

// y = W x + b + Σ over the ladder's neurons of act_j(x) · w_out_j, neuron by neuron in double,
// from the model's own matrices; the surrogate in the serving dtype, as it is served. `size` is
// the root of the sum of the squared terms: what rounding each of them costs grows with it.
struct Defined {
  std::vector<double> y, size;
};
Defined Definition(const ModelWeights& model, int layer, const CalibrationData::Layer& ladder,
                   const std::vector<double>& x) {
  const ModelConfig& config = model.config;
  const LayerWeights& weights = model.layers[layer];
  const size_t d = x.size();
  const std::vector<double> in = Doubles(weights.mlp_in.weight), out = Doubles(weights.mlp_out.weight);
  const std::vector<double> in_bias =
      weights.mlp_in.bias.defined() ? Doubles(weights.mlp_in.bias) : std::vector<double>(in.size() / d, 0);
  const std::vector<double> surrogate = Doubles(ladder.ladder_weight.to(weights.mlp_in.weight.scalar_type()));
  std::vector<double> y = Doubles(ladder.ladder_bias);
  const auto dot = [&](const std::vector<double>& matrix, size_t row) {
    double sum = 0;
    for (size_t i = 0; i < d; ++i) sum += matrix[row * d + i] * x[i];
    return sum;
  };
  std::vector<double> squares(d);
  for (size_t o = 0; o < d; ++o) {
    y[o] += dot(surrogate, o);
    squares[o] = y[o] * y[o];
  }
  for (const double listed : Doubles(ladder.ladder_neurons)) {
    const size_t neuron = static_cast<size_t>(listed), up = neuron + config.d_mlp;
    double value = Act(dot(in, neuron) + in_bias[neuron], config.activation);
    if (config.gated_mlp) value *= dot(in, up) + in_bias[up];
    for (size_t o = 0; o < d; ++o) {
      const double term = value * out[o * config.d_mlp + neuron];
      y[o] += term;
      squares[o] += term * term;
    }
  }
  Defined defined{.y = std::move(y), .size = std::move(squares)};
  for (double& size : defined.size) size = std::sqrt(size);
  return defined;
}

TEST_P(LadderOf, EqualsItsDefinition) {
  const ModelWeights& model = engine_.model();
  const int64_t d = model.config.d_model;
  const std::unique_ptr<Kernels> kernels = MakeKernels("auto", at::kCPU, std::get<1>(GetParam())).value();
  RoutedMlp mlp(model, *kernels);
  const RoutingPolicy policy = Policy(GatingMode::kLadder);
  for (const int count : {1, 7, 40}) {
    // Values that the serving dtype holds, past the sinks.
    const at::Tensor x = at::randn({count, d}).to(std::get<1>(GetParam())).to(at::kFloat);
    const std::vector<int32_t> ids(count, 0);
    Row row;
    row.tokens = ids;
    row.policy = &policy;
    for (int layer = 0; layer < layers(); ++layer) {
      RowResult result;
      for (auto* counts : {&result.linear_tokens, &result.ladder_tokens, &result.gated_tokens}) {
        counts->assign(layers(), 0);
      }
      StepGroup group{
          .kind = count > kSkinnyRows ? RowGroup::kWide : RowGroup::kSkinny, .total_rows = count, .rows = {}};
      group.rows.push_back(
          {.row = &row, .result = &result, .rows = count, .first_position = testing::kSinks, .pages = {}});
      const std::vector<double> y = Doubles(mlp.Run(layer, x, group));
      EXPECT_EQ(result.ladder_tokens[layer], static_cast<uint32_t>(count));
      for (int token = 0; token < count; ++token) {
        const Defined expected = Definition(model, layer, data_.layers[layer], Doubles(x[token]));
        for (int64_t i = 0; i < d; ++i) {
          // In bfloat16 up and gate, their product and, on some processors, the sum are rounded
          // to 8 bits each.
          ASSERT_NEAR(y[token * d + i], expected.y[i], (float32() ? 2e-6 : 0x1p-5) * (1 + expected.size[i]))
              << count << " rows, layer " << layer;
        }
      }
    }
  }
}

TEST_P(LadderOf, WithAllNeuronsAndNoSurrogateIsTheFullModel) {
  const ModelConfig& config = engine_.model().config;
  for (int layer = 0; layer < layers(); ++layer) {
    data_.layers[layer].ladder_weight = at::zeros({config.d_model, config.d_model});
    const at::Tensor& bias = engine_.model().layers[layer].mlp_out.bias;
    data_.layers[layer].ladder_bias = bias.defined() ? bias : at::zeros({config.d_model});
    data_.layers[layer].ladder_neurons = at::arange(config.d_mlp, at::kLong);
  }
  calibration_ = PlaceCalibration(data_, engine_.model());
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine_.model()));
  for (const int chunk : {1, 16, kLadderTokens}) {
    const TestEngine::Run run = Score(Policy(GatingMode::kLadder), chunk);
    // In bfloat16 a last bit may round the other way.
    EXPECT_LE(MaxDifference(run.logprobs, Score(full, chunk).logprobs), float32() ? 1e-5 : 0.05);
    EXPECT_EQ(run.ladder_tokens, std::vector<uint32_t>(layers(), kLadderTokens - testing::kSinks));
  }
}

TEST_P(LadderOf, ComputesOnlyThePathTakenAndAsksTheGateOnlyWhereItDecides) {
  const auto expect = [&](const TestEngine::Run& run, int64_t gated) {
    EXPECT_EQ(calls_.dot_rows, gated);
    EXPECT_EQ(std::reduce(run.gated_tokens.begin(), run.gated_tokens.end()), gated);
    for (int layer = 0; layer < layers(); ++layer) {
      const LoadedCalibration::Layer& calibrated = calibration_->layer(layer);
      EXPECT_EQ(calls_.RowsThrough(calibrated.surrogate), run.linear_tokens[layer]);
      EXPECT_EQ(calls_.RowsThrough(calibrated.ladder->in), run.ladder_tokens[layer]);
      EXPECT_EQ(calls_.RowsThrough(calibrated.ladder->joint), run.ladder_tokens[layer]);
      EXPECT_EQ(calls_.RowsThrough(engine_.model().layers[layer].mlp_in),
                kLadderTokens - run.linear_tokens[layer] - run.ladder_tokens[layer]);
    }
  };
  const std::vector<uint32_t> none(layers(), 0), all(layers(), kLadderTokens - testing::kSinks);
  const int64_t asked = int64_t{layers()} * (kLadderTokens - testing::kSinks);
  for (const int chunk : {1, 16, kLadderTokens}) {
    const TestEngine::Run three = Score(Policy(GatingMode::kGated, 0.6f, 0.35f), chunk);
    expect(three, asked);
    for (int layer = 0; layer < layers(); ++layer) {
      EXPECT_GT(three.linear_tokens[layer], 5u);
      EXPECT_GT(three.ladder_tokens[layer], 5u);
      EXPECT_LT(three.linear_tokens[layer] + three.ladder_tokens[layer], uint32_t{kLadderTokens - testing::kSinks});
    }
    // Where nothing may go linear the gate decides between the ladder and full.
    const TestEngine::Run two = Score(Policy(GatingMode::kGated, 1.0f, 0.5f), chunk);
    expect(two, asked);
    EXPECT_EQ(two.linear_tokens, none);
    EXPECT_NE(two.ladder_tokens, none);

    TestEngine::Run run = Score(PolicyAt({.linear_threshold = 1, .ladder_threshold = -1}), chunk);
    expect(run, 0);
    EXPECT_EQ(run.ladder_tokens, all);
    EXPECT_EQ(run.logprobs, Score(Policy(GatingMode::kLadder), chunk).logprobs);
    run = Score(PolicyAt({.linear_threshold = -1, .ladder_threshold = 1}), chunk);
    expect(run, 0);
    EXPECT_EQ(run.linear_tokens, all);
    EXPECT_EQ(run.logprobs, Score(Policy(GatingMode::kLinear), chunk).logprobs);
    run = Score(PolicyAt({.linear_threshold = 0.5f, .ladder_threshold = -1}), chunk);
    expect(run, asked);
    for (int layer = 0; layer < layers(); ++layer) {
      EXPECT_EQ(run.linear_tokens[layer] + run.ladder_tokens[layer], kLadderTokens - testing::kSinks);
    }
    run = Score(PolicyAt({.linear_threshold = 1, .ladder_threshold = 1}), chunk);
    expect(run, 0);
    EXPECT_EQ(run.logprobs, Score(RoutingPolicy::Full(InfoOf(engine_.model())), chunk).logprobs);
  }
}

// Layer 0 sees the same inputs whatever the thresholds.
TEST_P(LadderOf, AHigherThresholdNeverSendsMoreOfTheSameInputsDownACheapPath) {
  const std::vector<float> thresholds = {0.0f, 0.25f, 0.5f, 0.75f, 0.99f, 1.0f};
  const auto cheap = [&](float linear, float ladder) {
    const TestEngine::Run run = Score(Policy(GatingMode::kGated, linear, ladder), kLadderTokens);
    return std::pair(run.linear_tokens[0], run.linear_tokens[0] + run.ladder_tokens[0]);
  };
  for (const float ladder : thresholds) {
    std::pair<uint32_t, uint32_t> before = {kLadderTokens, kLadderTokens};
    for (const float linear : thresholds) {
      const auto now = cheap(linear, ladder);
      EXPECT_LE(now.first, before.first);
      EXPECT_LE(now.second, before.second);
      before = now;
    }
    EXPECT_EQ(before.first, 0u);
  }
  for (const float linear : thresholds) {
    std::pair<uint32_t, uint32_t> before = {kLadderTokens, kLadderTokens};
    for (const float ladder : thresholds) {
      const auto now = cheap(linear, ladder);
      EXPECT_LE(now.second, before.second);
      before = now;
    }
    EXPECT_EQ(before.first, before.second);  // at 1 nothing takes the ladder
  }
}

TEST_P(LadderOf, RecordsSayWhichTokensHaveNoFullMlp) {
  const TestEngine::Run run = Score(Policy(GatingMode::kGated, 0.6f, 0.35f), kLadderTokens,
                                    {.routing = true, .nonlinearity = true, .consensus = true});
  EXPECT_EQ(run.logprobs, Score(Policy(GatingMode::kGated, 0.6f, 0.35f), kLadderTokens).logprobs);
  const TokenRecords& records = run.records.front();
  std::vector<uint32_t> linear(layers(), 0), ladder(layers(), 0);
  for (int token = 0; token < kLadderTokens; ++token) {
    for (int layer = 0; layer < layers(); ++layer) {
      const size_t cell = static_cast<size_t>(token) * layers() + layer;
      const MlpPath path = records.path[cell];
      linear[layer] += path == MlpPath::kLinear ? 1 : 0;
      ladder[layer] += path == MlpPath::kLadder ? 1 : 0;
      EXPECT_EQ(std::isnan(records.nonlinearity[cell]), path != MlpPath::kFull);
      EXPECT_EQ(records.level[cell] == -1, path != MlpPath::kFull);
      EXPECT_GT(records.output_norm[cell], 0);
      EXPECT_EQ(std::isnan(records.gate_margin[cell]), token < testing::kSinks);
      if (token < testing::kSinks) continue;
      const float p = records.gate_margin[cell] + 0.6f;
      EXPECT_EQ(records.gate_margin[cell] > 0, path == MlpPath::kLinear);
      if (std::abs(p - 0.35f) > 1e-5) {
        EXPECT_EQ(p > 0.35f, path != MlpPath::kFull);
      }
      if (path != MlpPath::kFull) {
        EXPECT_EQ(records.fired[cell], 0u);
      }
    }
  }
  EXPECT_EQ(linear, run.linear_tokens);
  EXPECT_EQ(ladder, run.ladder_tokens);
}

}  // namespace
}  // namespace gatehouse
