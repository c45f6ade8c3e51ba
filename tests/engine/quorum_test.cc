#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "server/engine/mlp_work.h"
#include "server/engine/training/plain_forward.h"
#include "tests/engine/counting_kernels.h"
#include "tests/engine/test_models.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::CountingKernels;
using ::gatehouse::testing::IdTensor;
using ::gatehouse::testing::InfoOf;
using ::gatehouse::testing::KernelCalls;
using ::gatehouse::testing::MakePolicy;
using ::gatehouse::testing::MakeTestCalibration;
using ::gatehouse::testing::MakeTestModel;
using ::gatehouse::testing::RandomTokens;
using ::gatehouse::testing::TestEngine;

constexpr int kQuorumTokens = 60;

class QuorumOn : public ::testing::TestWithParam<Architecture> {
 protected:
  QuorumOn() : engine_(MakeTestModel({.architecture = GetParam()}), Kernels()) {
    calibration_ = MakeTestCalibration(engine_.model(), {.sink_positions = testing::kSinks});
  }

  std::unique_ptr<CountingKernels> Kernels() {
    return std::make_unique<CountingKernels>(MakeKernels("auto", at::kCPU, at::kFloat).value(), calls_);
  }

  RoutingPolicy Policy(int quorum, MlpPath path, std::vector<int> layers = {}) {
    GatingRequest request;
    request.mode = GatingMode::kQuorum;
    request.quorum = quorum;
    request.quorum_path = path;
    request.layers = std::move(layers);
    return MakePolicy(engine_.model(), request, calibration_);
  }

  KernelCalls calls_;
  TestEngine engine_;
  std::shared_ptr<const LoadedCalibration> calibration_;
};

INSTANTIATE_TEST_SUITE_P(All, QuorumOn,
                         ::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama),
                         [](const auto& info) {
                           return std::string(info.param == Architecture::kGpt2      ? "gpt2"
                                              : info.param == Architecture::kGptNeoX ? "neox"
                                                                                     : "llama");
                         });

// One layer at a time, so that it reads what it reads in full.
TEST_P(QuorumOn, TakesTheFullMlpWhereFewerThanTheQuorumFireInFull) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), kQuorumTokens, 3);
  const RecordRequest records{.routing = true, .consensus = true};
  const TokenRecords in_full =
      engine_.Score(tokens, RoutingPolicy::Full(InfoOf(engine_.model()), calibration_), {kQuorumTokens}, records)
          .records[0];
  bool some_full = false, some_left = false;
  for (int layer = 0; layer < 3; ++layer) {
    for (const int quorum : {1, 3, 7}) {
      for (const MlpPath path : {MlpPath::kLinear, MlpPath::kSkip}) {
        for (const int chunk : {1, 16, kQuorumTokens}) {
          const TestEngine::Run run = engine_.Score(tokens, Policy(quorum, path, {layer}), {chunk}, records);
          ASSERT_TRUE(run.status.ok()) << run.status;
          uint32_t left = 0;
          for (int token = 0; token < kQuorumTokens; ++token) {
            const int level = in_full.level[token * 3 + layer];
            const MlpPath expected = token >= testing::kSinks && level >= quorum ? path : MlpPath::kFull;
            const TokenRecords& found = run.records[token / chunk];
            const size_t cell = token % chunk * 3 + layer;
            EXPECT_EQ(found.path[cell], expected);
            EXPECT_EQ(found.level[cell], level);
            EXPECT_EQ(found.fired[cell], in_full.fired[token * 3 + layer]);
            EXPECT_TRUE(std::isnan(found.gate_margin[cell]));
            left += expected == path ? 1 : 0;
            (expected == path ? some_left : some_full) |= token >= testing::kSinks;
          }
          EXPECT_EQ((path == MlpPath::kSkip ? run.skip_tokens : run.linear_tokens)[layer], left);
          EXPECT_EQ((path == MlpPath::kSkip ? run.linear_tokens : run.skip_tokens)[layer], 0u);
          EXPECT_EQ(run.quorum_tokens[layer], static_cast<uint32_t>(kQuorumTokens - testing::kSinks));
          EXPECT_EQ(run.quorum_tokens[(layer + 1) % 3], 0u);
          EXPECT_EQ(run.gated_tokens[layer], 0u);
        }
      }
    }
  }
  EXPECT_TRUE(some_full && some_left);
}

TEST_P(QuorumOn, ComputesTheConsensusNeuronsAndThePathTakenAlone) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), kQuorumTokens, 3);
  for (const int chunk : {1, 16, kQuorumTokens}) {
    calls_.linear_rows.clear();
    const TestEngine::Run run = engine_.Score(tokens, Policy(3, MlpPath::kSkip), {chunk});
    for (int layer = 0; layer < 3; ++layer) {
      const LoadedCalibration::Layer& calibrated = calibration_->layer(layer);
      ASSERT_EQ(calibrated.consensus_in->weight.size(0), 7);
      EXPECT_EQ(calls_.RowsThrough(*calibrated.consensus_in), kQuorumTokens - testing::kSinks);
      EXPECT_EQ(calls_.RowsThrough(engine_.model().layers[layer].mlp_in), kQuorumTokens - run.skip_tokens[layer]);
      EXPECT_EQ(calls_.RowsThrough(calibrated.surrogate), 0);
      EXPECT_GT(run.skip_tokens[layer], 0u);
      EXPECT_LT(run.skip_tokens[layer], static_cast<uint32_t>(kQuorumTokens - testing::kSinks));
    }
  }
}

TEST_P(QuorumOn, ASkippedTokenGetsNothingFromTheMlp) {
  // All leave in all layers where one of seven suffices: take those that do.
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), kQuorumTokens, 3);
  const RecordRequest records{.routing = true, .consensus = true};
  const TestEngine::Run run = engine_.Score(tokens, Policy(2, MlpPath::kSkip), {kQuorumTokens}, records);
  for (int token = 0; token < kQuorumTokens; ++token) {
    for (int layer = 0; layer < 3; ++layer) {
      const size_t cell = token * 3 + layer;
      EXPECT_EQ(run.records[0].output_norm[cell] == 0, run.records[0].path[cell] == MlpPath::kSkip);
    }
  }
}

TEST_P(QuorumOn, TheGatesRecordIsTheirProbabilityWhateverDecides) {
  const std::vector<int32_t> tokens = RandomTokens(engine_.model(), kQuorumTokens, 3);
  const RecordRequest records{.routing = true, .gate = true};
  GatingRequest gated, linear;
  gated.mode = GatingMode::kGated;
  gated.threshold = 0.4f;
  linear.mode = GatingMode::kLinear;
  std::vector<at::Tensor> x;
  PlainForward(engine_.model(), IdTensor(tokens), [&](int layer, const at::Tensor& read) {
    x.push_back(read[0]);
    return PlainMlp(engine_.model(), layer, read);
  });
  for (const RoutingPolicy& policy :
       {RoutingPolicy::Full(InfoOf(engine_.model()), calibration_), MakePolicy(engine_.model(), gated, calibration_),
        MakePolicy(engine_.model(), linear, calibration_), Policy(3, MlpPath::kSkip)}) {
    for (const int chunk : {1, kQuorumTokens}) {
      const TestEngine::Run run = engine_.Score(tokens, policy, {chunk}, records);
      ASSERT_TRUE(run.status.ok()) << run.status;
      EXPECT_EQ(run.logprobs, engine_.Score(tokens, policy, {chunk}).logprobs);
      EXPECT_EQ(run.gated_tokens, engine_.Score(tokens, policy, {chunk}).gated_tokens);
      for (int token = 0; token < kQuorumTokens; ++token) {
        for (int layer = 0; layer < 3; ++layer) {
          const TokenRecords& found = run.records[token / chunk];
          const size_t cell = token % chunk * 3 + layer;
          if (!std::isnan(found.gate_margin[cell])) {
            EXPECT_EQ(found.gate_margin[cell], found.gate_probability[cell] - 0.4f);
          }
          // Layer 0 reads the same whatever the policy; the others where all is full.
          if (layer > 0 && !policy.all_full()) continue;
          const LoadedCalibration::Layer& gate = calibration_->layer(layer);
          const double z = (x[layer][token] * gate.gate_weight).sum().item<double>() + gate.gate_bias;
          EXPECT_NEAR(found.gate_probability[cell], 1 / (1 + std::exp(-z)), 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gatehouse
