#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>

#include "server/base/error_reason.h"
#include "server/engine/intervention.h"
#include "tests/engine/bare_calibration.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelInfo Model() {
  ModelInfo model;
  model.layers = 3;
  model.d_model = 4;
  model.d_mlp = 10;
  return model;
}

// Means and a ladder in layer 0 alone.
std::shared_ptr<const Calibration> OneLayerHasAll() {
  CalibrationInfo info;
  info.layers.resize(3);
  info.layers[0].neuron_means = true;
  info.layers[0].ladder_neurons = 2;
  return std::make_shared<testing::BareCalibration>(info);
}

Intervention Zero(std::vector<int> layers, std::vector<int> neurons, std::vector<int> positions = {}) {
  return {std::move(layers), std::move(positions), NeuronChange{.neurons = std::move(neurons)}};
}

Intervention Mean(std::vector<int> layers) {
  return {std::move(layers), {}, NeuronChange{.neurons = {1}, .kind = NeuronChange::Kind::kMean}};
}

absl::Status Refusal(std::vector<Intervention> interventions,
                     const std::shared_ptr<const Calibration>& calibration = OneLayerHasAll()) {
  return InterventionPlan::Create(std::move(interventions), Model(), calibration).status();
}

TEST(InterventionPlan, KeepsTheOrderOfEachLayer) {
  const auto plan = InterventionPlan::Create(
      {Zero({2, 0}, {3}), {{0}, {}, ZeroMlp{}}, {{1}, {}, ForcePath{MlpPath::kFull}}}, Model(), nullptr);
  ASSERT_THAT(plan.status(), StatusIs(absl::StatusCode::kInvalidArgument, _));  // a zeroed MLP has no neurons to zero
  const auto other = InterventionPlan::Create(
      {Zero({2, 0}, {3}), {{1}, {}, ZeroMlp{}}, {{1}, {}, ForcePath{MlpPath::kFull}}}, Model(), nullptr);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->layers(), 3);
  EXPECT_EQ((*other)->at(0).size(), 1u);
  ASSERT_EQ((*other)->at(1).size(), 2u);
  EXPECT_TRUE(std::holds_alternative<ZeroMlp>((*other)->at(1)[0]->change));
  EXPECT_EQ((*other)->at(2)[0], (*other)->at(0)[0]);
  EXPECT_THAT((*other)->notes(), ElementsAre("layer 0 ran in full where its neurons were changed",
                                             "layer 2 ran in full where its neurons were changed"));
}

TEST(InterventionPlan, SortsPositionsWithTheirVectors) {
  const auto plan = InterventionPlan::Create(
      {{{0}, {7, 2}, Patch{ActivationSite::kMlpOut, {7, 7, 7, 7, 2, 2, 2, 2}}},
       {{0},
        {5, 4, 3, 1},
        Patch{ActivationSite::kMlpOut, {1, 2, 3, 4}}}},  // one vector, though there are four positions
      Model(), nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT((*plan)->at(0)[0]->positions, ElementsAre(2, 7));
  EXPECT_THAT(std::get<Patch>((*plan)->at(0)[0]->change).values, ElementsAre(2, 2, 2, 2, 7, 7, 7, 7));
  EXPECT_THAT((*plan)->at(0)[1]->positions, ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(std::get<Patch>((*plan)->at(0)[1]->change).values, ElementsAre(1, 2, 3, 4));
}

TEST(InterventionPlan, NamesWhatIsOutOfItsBounds) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto invalid = [](auto matcher) { return StatusIs(absl::StatusCode::kInvalidArgument, matcher); };
  EXPECT_THAT(Refusal({Zero({0}, {1}), Zero({}, {1})}), invalid(HasSubstr("interventions[1].layers names no layer")));
  EXPECT_THAT(Refusal({Zero({3}, {1})}),
              invalid(HasSubstr("interventions[0].layers names layer 3, must be in [0, 3)")));
  EXPECT_EQ(ReasonOf(Refusal({Zero({3}, {1})})), reason::kLayerOutOfRange);
  EXPECT_THAT(Refusal({Zero({1, 1}, {1})}), invalid(HasSubstr("interventions[0].layers names layer 1 twice")));
  EXPECT_THAT(Refusal({Zero({0}, {1}, {4, 9, 4})}),
              invalid(HasSubstr("interventions[0].positions names position 4 twice")));
  EXPECT_THAT(Refusal({Zero({0}, {1}, {-1})}), invalid(HasSubstr("interventions[0].positions names position -1")));
  std::vector<int> many(4097);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_THAT(Refusal({Zero({0}, {1}, many)}),
              invalid(HasSubstr("interventions[0].positions has 4097 entries, at most 4096")));
  EXPECT_THAT(Refusal({Zero({0}, {})}), invalid(HasSubstr("interventions[0].neurons names no neuron")));
  EXPECT_THAT(Refusal({Zero({0}, {10})}),
              invalid(HasSubstr("interventions[0].neurons names neuron 10, must be in [0, 10)")));
  EXPECT_THAT(Refusal({Zero({0}, {-1})}), invalid(HasSubstr("interventions[0].neurons names neuron -1")));
  EXPECT_THAT(Refusal({Zero({0}, {2, 2})}), invalid(HasSubstr("interventions[0].neurons names neuron 2 twice")));
  EXPECT_THAT(Refusal({{{0}, {}, NeuronChange{.neurons = {1}, .value = nan}}}),
              invalid(HasSubstr("interventions[0].scale is not finite")));
  EXPECT_THAT(Refusal({{{0}, {}, NeuronChange{.neurons = {1}, .kind = NeuronChange::Kind::kSet, .value = nan}}}),
              invalid(HasSubstr("interventions[0].set is not finite")));
  EXPECT_THAT(Refusal({{{0}, {}, Patch{ActivationSite::kMlpOut, {1, 2, 3}}}}),
              invalid(HasSubstr("interventions[0].patch.values has 3 entries, must have 4, the site's width")));
  EXPECT_THAT(Refusal({{{0}, {1, 2}, Patch{ActivationSite::kNeurons, std::vector<float>(19)}}}),
              invalid(HasSubstr("has 19 entries, must have 10, the site's width, or 20, one vector a position")));
  EXPECT_THAT(Refusal({{{0}, {}, Patch{ActivationSite::kMlpOut, {1, nan, 3, 4}}}}),
              invalid(HasSubstr("interventions[0].patch.values holds a number that is not finite")));
  EXPECT_THAT(Refusal(std::vector<Intervention>(65, Zero({0}, {1}))),
              invalid(HasSubstr("interventions has 65 entries, at most 64")));
}

TEST(InterventionPlan, BoundsThePatchesOfARequestTogether) {
  ModelInfo model = Model();
  model.d_model = 1 << 15;
  const Intervention patch = {{0}, {}, Patch{ActivationSite::kMlpOut, std::vector<float>(1 << 15)}};
  EXPECT_TRUE(InterventionPlan::Create(std::vector<Intervention>(32, patch), model, nullptr).ok());
  EXPECT_THAT(InterventionPlan::Create(std::vector<Intervention>(33, patch), model, nullptr).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 1048576")));
}

TEST(InterventionPlan, SaysWhichLayerOfTheCalibrationLacksWhat) {
  const auto lacks = [](auto matcher) { return StatusIs(absl::StatusCode::kFailedPrecondition, matcher); };
  EXPECT_TRUE(Refusal({Mean({0})}).ok());
  EXPECT_THAT(Refusal({Mean({0, 2})}), lacks(AllOf(HasSubstr("interventions[0].neurons.mean"), HasSubstr("layer 2"))));
  EXPECT_THAT(Refusal({Mean({0})}, nullptr), lacks(HasSubstr("the model has none")));
  EXPECT_EQ(ReasonOf(Refusal({Mean({2})})), reason::kNotCalibrated);
  const auto force = [](MlpPath path, int layer) { return Intervention{{layer}, {}, ForcePath{path}}; };
  EXPECT_TRUE(Refusal({force(MlpPath::kLadder, 0)}).ok());
  EXPECT_THAT(Refusal({force(MlpPath::kLadder, 1)}),
              lacks(AllOf(HasSubstr("interventions[0].force_path"), HasSubstr("layer 1"), HasSubstr("ladder"))));
  EXPECT_TRUE(Refusal({force(MlpPath::kLinear, 1)}).ok());
  EXPECT_THAT(Refusal({force(MlpPath::kLinear, 1)}, nullptr), lacks(HasSubstr("the model has none")));
  EXPECT_TRUE(Refusal({force(MlpPath::kSkip, 1), force(MlpPath::kFull, 1)}, nullptr).ok());
}

TEST(InterventionPlan, KnowsWhatNeedsACalibration) {
  const auto need = [](Intervention one) { return InterventionPlan::NeedCalibration(std::vector{std::move(one)}); };
  EXPECT_TRUE(need(Mean({0})));
  EXPECT_TRUE(need({{0}, {}, ForcePath{MlpPath::kLinear}}));
  EXPECT_TRUE(need({{0}, {}, ForcePath{MlpPath::kLadder}}));
  EXPECT_FALSE(need({{0}, {}, ForcePath{MlpPath::kSkip}}));
  EXPECT_FALSE(need({{0}, {}, ForcePath{MlpPath::kFull}}));
  EXPECT_FALSE(need({{0}, {}, ZeroMlp{}}));
  EXPECT_FALSE(need(Zero({0}, {1})));
}

TEST(InterventionPlan, RefusesToChangeNeuronsThatAnotherTakesAway) {
  const auto force = [](MlpPath path, std::vector<int> positions) {
    return Intervention{{1, 2}, std::move(positions), ForcePath{path}};
  };
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("interventions[1] changes neurons of layer 1, which interventions[0] leaves"));
  EXPECT_THAT(Refusal({force(MlpPath::kLinear, {}), Zero({0, 1}, {1}, {5})}), refused);
  EXPECT_THAT(Refusal({force(MlpPath::kSkip, {4, 5}), Zero({1}, {1}, {5, 6})}), refused);
  EXPECT_THAT(Refusal({force(MlpPath::kSkip, {4}), {{1}, {}, Patch{ActivationSite::kNeurons, std::vector<float>(10)}}}),
              refused);
  EXPECT_TRUE(Refusal({force(MlpPath::kSkip, {4}), Zero({1}, {1}, {5, 6})}).ok());
  EXPECT_TRUE(Refusal({force(MlpPath::kFull, {}), Zero({1}, {1})}).ok());
  EXPECT_TRUE(Refusal({force(MlpPath::kSkip, {}), Zero({0}, {1})}).ok());
  EXPECT_TRUE(Refusal({force(MlpPath::kSkip, {}), {{1}, {}, Patch{ActivationSite::kMlpOut, {1, 2, 3, 4}}}}).ok());
}

}  // namespace
}  // namespace gatehouse
