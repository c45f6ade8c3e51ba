#include "server/engine/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Rule = RoutingPolicy::Rule;

class FakeCalibration final : public Calibration {
 public:
  explicit FakeCalibration(CalibrationInfo info) : Calibration(std::move(info)) {}
};

ModelInfo FourLayers() {
  ModelInfo model;
  model.layers = 4;
  return model;
}

std::shared_ptr<const Calibration> Gateable(std::vector<bool> layers) {
  CalibrationInfo info;
  info.sink_positions = 5;
  for (const bool gateable : layers) info.layers.emplace_back().gateable = gateable;
  return std::make_shared<FakeCalibration>(info);
}

std::vector<Rule> RulesOf(const RoutingPolicy& policy) {
  std::vector<Rule> rules;
  for (int layer = 0; layer < policy.layers(); ++layer) rules.push_back(policy.rule(layer));
  return rules;
}

absl::StatusOr<RoutingPolicy> Create(const GatingRequest& request) {
  return RoutingPolicy::Create(request, FourLayers(), Gateable({false, true, true, false}));
}

TEST(RoutingPolicy, FullNeedsNoCalibration) {
  const auto policy = RoutingPolicy::Create({}, FourLayers(), nullptr);
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->all_full());
  EXPECT_EQ(policy->sink_positions(), 0);
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kFull, Rule::kFull, Rule::kFull));
}

TEST(RoutingPolicy, LinearAndGatedNeedACalibration) {
  for (const GatingMode mode : {GatingMode::kLinear, GatingMode::kGated}) {
    EXPECT_THAT(RoutingPolicy::Create({.mode = mode, .threshold = {}, .layer_thresholds = {}, .layers = {}},
                                      FourLayers(), nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("calibration")));
  }
}

TEST(RoutingPolicy, LinearTakesAllLayersByDefaultAndKeepsTheSinksOfTheCalibration) {
  GatingRequest request;
  request.mode = GatingMode::kLinear;
  const auto policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kLinear, Rule::kLinear, Rule::kLinear, Rule::kLinear));
  EXPECT_FALSE(policy->all_full());
  EXPECT_EQ(policy->sink_positions(), 5);
  EXPECT_THAT(policy->notes(), IsEmpty());
}

TEST(RoutingPolicy, GatedTakesTheGateableLayersByDefault) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  const auto policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kGated, Rule::kGated, Rule::kFull));
  EXPECT_EQ(policy->threshold(1), 0.5f);
}

TEST(RoutingPolicy, SaysSoWhenNoLayerIsGateable) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  const auto policy = RoutingPolicy::Create(request, FourLayers(), Gateable({false, false, false, false}));
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->all_full());
  EXPECT_THAT(policy->notes(), ElementsAre("no layer is gateable: ran in full"));
}

TEST(RoutingPolicy, NamedLayersReplaceTheDefault) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.layers = {3, 0};
  request.threshold = 0.25f;
  request.layer_thresholds = {{3, 0.75f}};
  const auto policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kGated, Rule::kFull, Rule::kFull, Rule::kGated));
  EXPECT_EQ(policy->threshold(0), 0.25f);
  EXPECT_EQ(policy->threshold(3), 0.75f);
}

TEST(RoutingPolicy, ALayerWithAThresholdOfItsOwnIsGatedThoughNotGateable) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.layer_thresholds = {{0, 0.75f}};
  const auto policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kGated, Rule::kGated, Rule::kGated, Rule::kFull));
}

TEST(RoutingPolicy, ThresholdOneIsTheFullModel) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.threshold = 1.0f;
  auto policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->all_full());
  EXPECT_THAT(policy->notes(), IsEmpty());
  request.layer_thresholds = {{2, 0.0f}};
  policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kFull, Rule::kGated, Rule::kFull));
}

TEST(RoutingPolicy, RefusesAThresholdThatIsNoProbability) {
  for (const float bad : {-0.001f, 1.001f, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const GatingMode mode : {GatingMode::kFull, GatingMode::kLinear, GatingMode::kGated}) {
      GatingRequest request;
      request.mode = mode;
      request.threshold = bad;
      EXPECT_THAT(Create(request),
                  StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("threshold"), HasSubstr("[0, 1]"))))
          << bad;
    }
    GatingRequest request;
    request.mode = GatingMode::kGated;
    request.layer_thresholds = {{2, bad}};
    EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr("layer_thresholds[2]"), HasSubstr("[0, 1]"))))
        << bad;
  }
}

TEST(RoutingPolicy, RefusesLayersOutOfRangeOrTwice) {
  for (const GatingMode mode : {GatingMode::kFull, GatingMode::kLinear, GatingMode::kGated}) {
    for (const int bad : {-1, 4, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
      GatingRequest request;
      request.mode = mode;
      request.layers = {1, bad};
      EXPECT_THAT(Create(request),
                  StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("layers"), HasSubstr("[0, 4)"))));
    }
    GatingRequest request;
    request.mode = mode;
    request.layers = {1, 2, 1};
    EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 1 twice")));
  }
}

TEST(RoutingPolicy, RefusesLayerThresholdsOutOfPlace) {
  GatingRequest request;
  request.mode = GatingMode::kLinear;
  request.layer_thresholds = {{1, 0.5f}};
  EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("only for gated")));
  request.mode = GatingMode::kGated;
  request.layers = {0, 2};
  EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not in layers")));
  request.layers = {};
  request.layer_thresholds = {{4, 0.5f}};
  EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 4)")));
}

TEST(RoutingPolicy, RefusesACalibrationOfAnotherDepth) {
  GatingRequest request;
  request.mode = GatingMode::kLinear;
  EXPECT_THAT(RoutingPolicy::Create(request, FourLayers(), Gateable({true, true})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("2 layers")));
}

}  // namespace
}  // namespace gatehouse
