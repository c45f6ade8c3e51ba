#include "server/engine/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "server/base/error_reason.h"
#include "server/engine/mlp_work.h"
#include "tests/engine/bare_calibration.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Rule = RoutingPolicy::Rule;

ModelInfo FourLayers() {
  ModelInfo model;
  model.layers = 4;
  return model;
}

std::shared_ptr<const Calibration> Gateable(std::vector<bool> layers) {
  CalibrationInfo info;
  info.sink_positions = 5;
  for (const bool gateable : layers) info.layers.emplace_back().gateable = gateable;
  return std::make_shared<testing::BareCalibration>(info);
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

// With 0, 2, 3 and 5 consensus neurons.
std::shared_ptr<const Calibration> WithConsensus() {
  CalibrationInfo info;
  for (const size_t neurons : {0, 2, 3, 5}) info.layers.emplace_back().consensus.resize(neurons);
  return std::make_shared<testing::BareCalibration>(info);
}

absl::StatusOr<RoutingPolicy> Quorum(int quorum, MlpPath path = MlpPath::kLinear, std::vector<int> layers = {}) {
  GatingRequest request;
  request.mode = GatingMode::kQuorum;
  request.quorum = quorum;
  request.quorum_path = path;
  request.layers = std::move(layers);
  return RoutingPolicy::Create(request, FourLayers(), WithConsensus());
}

TEST(RoutingPolicy, AQuorumIsForLayersWithEnoughConsensusNeurons) {
  const auto policy = Quorum(3, MlpPath::kSkip);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kFull, Rule::kQuorum, Rule::kQuorum));
  EXPECT_FALSE(policy->all_full());
  EXPECT_EQ(policy->quorum(), 3);
  EXPECT_EQ(policy->quorum_path(), MlpPath::kSkip);
  EXPECT_THAT(policy->notes(), IsEmpty());
  const auto chosen = Quorum(2, MlpPath::kLinear, {1, 3});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(RulesOf(*chosen), ElementsAre(Rule::kFull, Rule::kQuorum, Rule::kFull, Rule::kQuorum));
  const auto none = Quorum(6);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->all_full());
  EXPECT_THAT(none->notes(), ElementsAre("no layer has 6 consensus neurons: ran in full"));
}

TEST(RoutingPolicy, AQuorumOutOfItsBoundsIsRefused) {
  const auto invalid = [](const char* message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
  };
  EXPECT_THAT(Quorum(0), invalid("quorum is 0, must be in [1, 64]"));
  EXPECT_THAT(Quorum(65), invalid("quorum is 65, must be in [1, 64]"));
  EXPECT_THAT(Quorum(2, MlpPath::kLadder), invalid("quorum_path must be linear or skip"));
  EXPECT_THAT(Quorum(3, MlpPath::kLinear, {3, 1}),
              invalid("layers names layer 1, which has 2 consensus neurons, fewer than the quorum of 3"));
  GatingRequest gated;
  gated.mode = GatingMode::kGated;
  gated.quorum = 2;
  EXPECT_THAT(Create(gated), invalid("quorum is only for quorum mode"));
  gated.quorum = 0;
  gated.quorum_path = MlpPath::kSkip;
  EXPECT_THAT(Create(gated), invalid("quorum_path is only for quorum mode"));
}

TEST(RoutingPolicy, AllModesButFullNeedACalibration) {
  for (const GatingMode mode : {GatingMode::kLinear, GatingMode::kGated, GatingMode::kLadder}) {
    GatingRequest request;
    request.mode = mode;
    EXPECT_THAT(RoutingPolicy::Create(request, FourLayers(), nullptr),
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
  EXPECT_EQ(policy->thresholds(1).linear_threshold, 0.5f);
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
  EXPECT_EQ(policy->thresholds(0).linear_threshold, 0.25f);
  EXPECT_EQ(policy->thresholds(3).linear_threshold, 0.75f);
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

TEST(RoutingPolicy, NeverIgnoresAFieldOfAnotherModeInSilence) {
  GatingRequest request;
  request.layers = {1};
  EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layers is not for full mode")));
  for (const GatingMode mode : {GatingMode::kFull, GatingMode::kLinear}) {
    request = {};
    request.mode = mode;
    request.threshold = 0.3f;
    const auto policy = Create(request);
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_THAT(policy->notes(), ElementsAre(HasSubstr("threshold is only for gated mode: not used")));
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

// Layers 1 and 3 have a ladder, layers 1 and 2 are gateable.
absl::StatusOr<RoutingPolicy> CreateWithLadders(const GatingRequest& request) {
  CalibrationInfo info;
  info.layers.resize(4);
  info.layers[1].gateable = info.layers[2].gateable = true;
  info.layers[1].ladder_neurons = info.layers[3].ladder_neurons = 8;
  info.operating_points = {{.name = "1%", .layers = {{0.5f, 1}, {0.75f, 0.25f}, {-1, 1}, {1, -1}}},
                           {.name = "static", .layers = {{1, 1}, {1, 0.25f}, {2, 1}, {0.5f, -1}}}};
  return RoutingPolicy::Create(request, FourLayers(), std::make_shared<testing::BareCalibration>(info));
}

TEST(RoutingPolicy, LadderTakesTheLayersThatHaveOne) {
  GatingRequest request;
  request.mode = GatingMode::kLadder;
  auto policy = CreateWithLadders(request);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kLadder, Rule::kFull, Rule::kLadder));
  EXPECT_FALSE(policy->all_full());
  request.layers = {3};
  policy = CreateWithLadders(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kFull, Rule::kFull, Rule::kLadder));
  request.layers = {2};
  EXPECT_THAT(CreateWithLadders(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 2, which has no ladder")));
}

TEST(RoutingPolicy, SaysSoWhenNoLayerHasALadder) {
  GatingRequest request;
  request.mode = GatingMode::kLadder;
  auto policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->all_full());
  EXPECT_THAT(policy->notes(), ElementsAre("no layer has a ladder: ran in full"));
  request.mode = GatingMode::kGated;
  request.ladder_threshold = 0.25f;
  policy = Create(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(policy->notes(), ElementsAre("no chosen layer has a ladder: ran without"));
}

TEST(RoutingPolicy, ALadderThresholdIsForTheChosenLayersThatHaveALadder) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.threshold = 1.0f;
  request.ladder_threshold = 0.25f;
  const auto policy = CreateWithLadders(request);
  ASSERT_TRUE(policy.ok());
  // Layer 2 is gateable and has none: at threshold 1 it runs in full.
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kGated, Rule::kFull, Rule::kFull));
  EXPECT_EQ(policy->thresholds(1).linear_threshold, 1);
  EXPECT_EQ(policy->thresholds(1).ladder_threshold, 0.25f);
  EXPECT_THAT(policy->notes(), IsEmpty());
  request.ladder_threshold = 1.0f;
  EXPECT_TRUE(CreateWithLadders(request)->all_full());
}

TEST(RoutingPolicy, RefusesALadderThresholdOutOfPlace) {
  for (const float bad : {-0.001f, 1.001f, std::numeric_limits<float>::quiet_NaN()}) {
    GatingRequest request;
    request.mode = GatingMode::kGated;
    request.ladder_threshold = bad;
    EXPECT_THAT(CreateWithLadders(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     AllOf(HasSubstr("ladder_threshold"), HasSubstr("[0, 1]"))));
  }
  for (const GatingMode mode : {GatingMode::kFull, GatingMode::kLinear, GatingMode::kLadder}) {
    GatingRequest request;
    request.mode = mode;
    request.ladder_threshold = 0.5f;
    EXPECT_THAT(CreateWithLadders(request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ladder_threshold is only for gated")));
  }
}

// A threshold below 0 is always exceeded and one of 1 never: the gate need not be asked.
TEST(RoutingPolicy, AnOperatingPointSetsTheRuleOfEveryLayer) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.operating_point = "1%";
  auto policy = CreateWithLadders(request);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kGated, Rule::kGated, Rule::kLinear, Rule::kLadder));
  EXPECT_EQ(policy->thresholds(1).linear_threshold, 0.75f);
  EXPECT_EQ(policy->thresholds(1).ladder_threshold, 0.25f);
  request.operating_point = "static";
  policy = CreateWithLadders(request);
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(RulesOf(*policy), ElementsAre(Rule::kFull, Rule::kGated, Rule::kFull, Rule::kGated));
}

TEST(RoutingPolicy, RefusesAnUnknownOperatingPointAndNamesThoseThereAre) {
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.operating_point = "3%";
  const auto policy = CreateWithLadders(request);
  EXPECT_THAT(policy, StatusIs(absl::StatusCode::kNotFound, HasSubstr("these: 1%, static")));
  EXPECT_EQ(ReasonOf(policy.status()), "OPERATING_POINT_NOT_FOUND");
  EXPECT_THAT(Create(request), StatusIs(absl::StatusCode::kNotFound, HasSubstr("it has none")));
}

TEST(RoutingPolicy, AnOperatingPointStandsAlone) {
  const auto refuses = [](const char* field, const std::function<void(GatingRequest&)>& change) {
    GatingRequest request;
    request.mode = GatingMode::kGated;
    request.operating_point = "1%";
    change(request);
    EXPECT_THAT(CreateWithLadders(request),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("operating_point"), HasSubstr(field))));
  };
  refuses("and threshold", [](GatingRequest& r) { r.threshold = 0.5f; });
  refuses("and layer_thresholds", [](GatingRequest& r) { r.layer_thresholds = {{1, 0.5f}}; });
  refuses("and ladder_threshold", [](GatingRequest& r) { r.ladder_threshold = 0.5f; });
  refuses("and layers", [](GatingRequest& r) { r.layers = {1}; });
  for (const GatingMode mode : {GatingMode::kFull, GatingMode::kLinear, GatingMode::kLadder}) {
    refuses("only for gated mode", [mode](GatingRequest& r) { r.mode = mode; });
  }
}

TEST(MlpWork, CountsTheMultiplicationsOfEveryPath) {
  ModelInfo model;
  model.d_model = 10;
  model.d_mlp = 40;
  EXPECT_EQ(FullMlpWork(model), 800);
  EXPECT_EQ(LinearMlpWork(model), 100);
  EXPECT_EQ(LadderMlpWork(model, 5), 200);
  EXPECT_EQ(GateWork(model), 10);
  model.gated_mlp = true;
  EXPECT_EQ(FullMlpWork(model), 1200);
  EXPECT_EQ(LadderMlpWork(model, 5), 250);
}

TEST(MlpWork, SavesNothingInFullAndEverythingThatWasNotDoneElsewhere) {
  ModelInfo model;
  model.d_model = 10;
  model.d_mlp = 40;
  EXPECT_EQ(MlpWorkSaved(model, {}), 0);
  const LayerTraffic full{.full = 7};
  EXPECT_EQ(MlpWorkSaved(model, {&full, 1}), 0);
  const LayerTraffic asked{.full = 7, .gated = 7};
  EXPECT_NEAR(MlpWorkSaved(model, {&asked, 1}), -10.0 / 800, 1e-12);
  const std::vector<LayerTraffic> mixed = {{.full = 4},
                                           {.full = 1, .linear = 2, .ladder = 1, .gated = 3, .ladder_neurons = 5}};
  EXPECT_NEAR(MlpWorkSaved(model, mixed), 1 - (5 * 800 + 2 * 100 + 200 + 3 * 10) / 6400.0, 1e-12);
}

TEST(RoutingPolicy, RefusesACalibrationOfAnotherDepth) {
  GatingRequest request;
  request.mode = GatingMode::kLinear;
  EXPECT_THAT(RoutingPolicy::Create(request, FourLayers(), Gateable({true, true})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("2 layers")));
}

}  // namespace
}  // namespace gatehouse
