// An operating point on the plain path, where it was chosen, and as it is served.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/engine/training/gated_forward.h"
#include "tests/engine/test_models.h"

namespace gatehouse {
namespace {

using testing::IdTensor;
using testing::LogprobsOf;
using testing::MakePolicy;
using testing::MakeTestCalibrationData;
using testing::MakeTestModel;
using testing::MaxDifference;
using testing::RandomTokens;
using testing::TestEngine;

constexpr int kPointTokens = 80;

class OperatingPointOf : public ::testing::TestWithParam<Architecture> {};

INSTANTIATE_TEST_SUITE_P(All, OperatingPointOf,
                         ::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama));

TEST_P(OperatingPointOf, IsServedAsItWasChosen) {
  TestEngine engine(MakeTestModel({.architecture = GetParam()}));
  const ModelWeights& model = engine.model();
  CalibrationData data = MakeTestCalibrationData(model, {.sink_positions = testing::kSinks});
  OperatingPoint point;
  point.name = "1%";
  point.layers.assign(data.layers.size(), {.linear_threshold = 0.6F, .ladder_threshold = 0.35F});
  point.layers[0] = {.linear_threshold = 1, .ladder_threshold = -1};
  data.info.operating_points = {point};

  std::vector<CheapPaths> paths(data.layers.size());
  for (size_t layer = 0; layer < paths.size(); ++layer) {
    static_cast<CalibrationData::Layer&>(paths[layer]) = data.layers[layer];
  }
  GatedMlps mlps(model, paths, point.layers, testing::kSinks);
  const std::vector<int32_t> tokens = RandomTokens(model, kPointTokens, 3);
  const at::Tensor logits =
      PlainForward(model, IdTensor(tokens), [&](int layer, const at::Tensor& x) { return mlps.Write(layer, x); });

  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.operating_point = point.name;
  const RoutingPolicy policy = MakePolicy(model, request, PlaceCalibration(data, model));
  const TestEngine::Run run = engine.Score(tokens, policy, {kPointTokens});
  ASSERT_TRUE(run.status.ok()) << run.status;

  EXPECT_LT(MaxDifference(LogprobsOf(logits.squeeze(0), tokens), run.logprobs), 1e-4);
  int64_t linear = 0;
  for (size_t layer = 0; layer < paths.size(); ++layer) {
    EXPECT_EQ(mlps.traffic()[layer].linear, run.linear_tokens[layer]) << layer;
    EXPECT_EQ(mlps.traffic()[layer].ladder, run.ladder_tokens[layer]) << layer;
    EXPECT_EQ(mlps.traffic()[layer].gated, run.gated_tokens[layer]) << layer;
    linear += mlps.traffic()[layer].linear;
  }
  EXPECT_GT(linear, 0);
  EXPECT_EQ(mlps.traffic()[0].ladder, kPointTokens - testing::kSinks);
}

}  // namespace
}  // namespace gatehouse
