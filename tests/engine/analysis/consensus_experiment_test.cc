#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "server/engine/analysis/mlp_profile.h"
#include "tests/engine/analysis/planted_consensus.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::ElementsAre;
using testing::ExpectSound;
using ::testing::HasSubstr;
using testing::Integers;
using ::testing::IsEmpty;
using testing::kPlantedException;
using testing::kPlantedLayer;
using testing::Load;
using ::testing::Not;
using testing::Numbers;
using testing::PlantedConsensus;
using testing::Planting;
using testing::RowsWith;
using testing::RunOn;
using testing::Spec;
using testing::Strings;
using testing::Table;
using testing::Text;

// The neurons of a kind that a layer has, ascending.
std::vector<double> Neurons(const ExperimentResult& result, int layer, const std::string& kind) {
  const ReportTable& table = Table(result, "neurons");
  std::vector<double> neurons;
  for (const size_t row : RowsWith(table, {{"layer", layer}})) {
    if (Strings(table, "kind")[row] == kind) neurons.push_back(Numbers(table, "neuron")[row]);
  }
  std::sort(neurons.begin(), neurons.end());
  return neurons;
}

class Consensus : public ::testing::TestWithParam<Planting> {};

TEST_P(Consensus, IsFoundExactlyAndFollowedOnOtherTokens) {
  const auto [planted, noise] = GetParam();
  const ModelWeights model = Load({.consensus = planted, .noise = noise});
  const ExperimentSpec spec = Spec(ConsensusMethod{});
  const auto result = RunOn(model, spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_EQ(Neurons(*result, kPlantedLayer, "consensus"), PlantedConsensus(planted));
  EXPECT_THAT(Neurons(*result, kPlantedLayer, "exception"), ElementsAre(kPlantedException));
  const ReportTable& neurons = Table(*result, "neurons");
  for (const size_t row : RowsWith(neurons, {{"layer", kPlantedLayer}})) {
    if (Strings(neurons, "kind")[row] != "consensus") continue;
    EXPECT_NEAR(Numbers(neurons, "held_out_base_rate")[row], 0.96, 0.03);
    EXPECT_LT(Numbers(neurons, "held_out_difference")[row], -0.6);
  }

  const ReportTable& arc = Table(*result, "arc");
  for (size_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(Numbers(arc, "consensus")[layer], 0) << layer;
    EXPECT_EQ(Numbers(arc, "exception")[layer], 0) << layer;
    EXPECT_TRUE(std::isnan(Numbers(arc, "gradient")[layer])) << layer;
    EXPECT_THAT(Strings(arc, "phase")[layer], Not(HasSubstr("decision")));
  }
  EXPECT_EQ(Strings(arc, "phase")[kPlantedLayer], "decision");
  EXPECT_LT(Numbers(arc, "consensus_shuffled")[kPlantedLayer], 0.2);
  EXPECT_LT(Numbers(arc, "exception_shuffled")[kPlantedLayer], 0.2);
  EXPECT_LT(Numbers(arc, "gradient_high")[kPlantedLayer], -0.5);

  // Each token's level follows from the token alone, and so does whether the exception fires.
  const at::Tensor far = testing::FarSide(testing::ReportTokens(model, spec, Text(1)));
  const at::Tensor level = Integers(*result, "level.1")[kPlantedLayer], fires = Integers(*result, "exception.1");
  EXPECT_TRUE(level.narrow(1, 0, 4).eq(-1).all().item<bool>());
  EXPECT_TRUE(level.eq(at::where(far, 0, planted)).narrow(1, 4, 124).all().item<bool>());
  EXPECT_TRUE(fires[kPlantedLayer].eq(far.to(at::kLong)).narrow(1, 4, 124).all().item<bool>());
  EXPECT_TRUE(fires[0].eq(-1).all().item<bool>());
}

TEST_P(Consensus, TablesShowWhatEachLevelGoesWith) {
  const auto [planted, noise] = GetParam();
  ExperimentSpec spec = Spec(ConsensusMethod{});
  spec.options.layers = {kPlantedLayer};
  const ModelWeights model = Load({.consensus = planted, .noise = noise});
  const auto result = RunOn(model, spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  const at::Tensor far = testing::FarSide(testing::ReportTokens(model, spec, Text(1))).narrow(1, 4, 124);
  const ReportTable& levels = Table(*result, "levels");
  for (int level = 0; level <= planted; ++level) {
    ASSERT_EQ(Strings(levels, "weights")[level], "trained");
    const bool silent = level == 0, all = level == planted;
    const double tokens = silent ? far.sum().item<double>() : all ? (~far).sum().item<double>() : 0;
    EXPECT_EQ(Numbers(levels, "level")[level], level);
    EXPECT_EQ(Numbers(levels, "tokens")[level], tokens);
    EXPECT_DOUBLE_EQ(Numbers(levels, "share")[level], tokens / static_cast<double>(far.numel()));
    if (silent || all) {
      EXPECT_EQ(Numbers(levels, "exception_rate")[level], silent ? 1 : 0);
    } else {
      EXPECT_TRUE(std::isnan(Numbers(levels, "residual_norm")[level]));
    }
  }
  EXPECT_GT(Numbers(levels, "residual_norm_low")[0], Numbers(levels, "residual_norm_high")[planted]);

  const ReportTable& exclusivity = Table(*result, "exclusivity");
  ASSERT_EQ(Numbers(exclusivity, "exclusivity").size(), static_cast<size_t>(planted));
  for (int i = 0; i < planted; ++i) {
    EXPECT_EQ(Numbers(exclusivity, "exception")[i], kPlantedException);
    EXPECT_EQ(Numbers(exclusivity, "exclusivity")[i], 1);
    EXPECT_GT(Numbers(exclusivity, "independent")[i], 0.9);
    EXPECT_GT(Numbers(exclusivity, "excess_low")[i], 0);
  }
  const ReportTable& prediction = Table(*result, "prediction");
  EXPECT_THAT(Strings(prediction, "reading"), ElementsAre("binary", "continuous"));
  EXPECT_GT(Numbers(prediction, "auc_low")[0], 0.5);
  EXPECT_GE(Numbers(prediction, "gain")[0], 0);
  EXPECT_NEAR(Numbers(prediction, "base_rate")[0], 0.75, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Planted, Consensus, ::testing::ValuesIn(testing::kPlantings));

TEST(ConsensusExperiment, FindsNoGradientInRandomWeights) {
  const ModelWeights model = Load({.random_weights = true});
  const auto result = RunOn(model, Spec(ConsensusMethod{}), {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  const ReportTable& arc = Table(*result, "arc");
  for (size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(Numbers(arc, "consensus")[layer], 0) << layer;
    EXPECT_EQ(Numbers(arc, "consensus_random")[layer], 0) << layer;
    EXPECT_TRUE(std::isnan(Numbers(arc, "gradient")[layer])) << layer;
    EXPECT_TRUE(std::isnan(Numbers(arc, "random_gradient")[layer])) << layer;
    EXPECT_THAT(Strings(arc, "phase")[layer], ::testing::AnyOf("scaffold", "diffuse"));
  }
  EXPECT_THAT(Numbers(Table(*result, "levels"), "level"), IsEmpty());
  EXPECT_THAT(Numbers(Table(*result, "prediction"), "accuracy"), IsEmpty());
  EXPECT_THAT(result->report.summary, HasSubstr("0 of 4 layers have consensus neurons"));
}

TEST(ConsensusExperiment, ItsControlIsTheSameSearchInTheLayerDrawnAnew) {
  const ModelWeights model = Load();
  ExperimentSpec spec = Spec(ConsensusMethod{});
  spec.options.layers = {kPlantedLayer};
  const auto result = RunOn(model, spec, {Text(1)});
  // The seed of the layer where the experiment's is 0.
  const auto drawn = RunOn(WithRandomMlp(model, kPlantedLayer, kPlantedLayer), spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  const ReportTable &arc = Table(*result, "arc"), &drawn_arc = Table(*drawn, "arc");
  for (const std::string kind : {"consensus", "exception", "gateway"}) {
    EXPECT_EQ(Numbers(arc, kind + "_random"), Numbers(drawn_arc, kind)) << kind;
  }
  EXPECT_NE(Numbers(arc, "exception_random"), Numbers(arc, "exception"));

  const auto residuals = [](const ExperimentResult& of, const std::string& weights) {
    const ReportTable& levels = Table(of, "levels");
    std::vector<double> found;
    for (size_t i = 0; i < Strings(levels, "weights").size(); ++i) {
      const double residual = Numbers(levels, "residual_norm")[i];
      if (Strings(levels, "weights")[i] == weights && !std::isnan(residual)) found.push_back(residual);
    }
    return found;
  };
  EXPECT_EQ(residuals(*result, "random weights"), residuals(*drawn, "trained"));
}

TEST(ConsensusExperiment, KeepsAtMostTheAskedForConsensusNeuronsAndRunsEveryCorpus) {
  ExperimentSpec spec = Spec(ConsensusMethod{.max_consensus = 3});
  spec.options.layers = {kPlantedLayer};
  const auto result = RunOn(Load(), spec, {Text(1, 9000, "one"), Text(2, 9000, "two")});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_THAT(Numbers(Table(*result, "arc"), "consensus"), ElementsAre(3, 3));
  EXPECT_THAT(Strings(Table(*result, "arc"), "corpus"), ElementsAre("one", "two"));
  EXPECT_THAT(Strings(Table(*result, "prediction"), "series"),
              ElementsAre("binary, one", "continuous, one", "binary, two", "continuous, two"));
  EXPECT_EQ(Integers(*result, "level.2").size(0), 1);
}

TEST(ConsensusExperiments, ReportProgressInOrderAndStopWhenCancelled) {
  const ModelWeights model = Load();
  for (const ExperimentMethod& method :
       {ExperimentMethod(ConsensusMethod{}), ExperimentMethod(AblationMethod{.max_consensus = 2}),
        ExperimentMethod(QuorumMethod{.max_consensus = 2})}) {
    ExperimentSpec spec = Spec(method);
    spec.options.layers = {1, 3};
    std::vector<double> fractions;
    const auto done =
        RunOn(model, spec, {Text(1)}, [&](double fraction, std::string_view) { fractions.push_back(fraction); });
    ASSERT_TRUE(done.ok()) << ExperimentKind(method) << done.status();
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end())) << ExperimentKind(method);
    EXPECT_EQ(fractions.front(), 0);
    EXPECT_GT(fractions[fractions.size() - 2], 0.85) << ExperimentKind(method);

    std::atomic<bool> cancelled{false};
    size_t calls = 0;
    const ProgressFn stop = [&](double, std::string_view) { cancelled = ++calls == fractions.size() / 2; };
    const std::vector<Corpus> corpora = {Text(1)};
    EXPECT_THAT(RunExperiment(model, spec, corpora, "", stop, cancelled),
                testing::StatusIs(absl::StatusCode::kCancelled, ::testing::_));
    EXPECT_EQ(calls, fractions.size() / 2);
  }
}

}  // namespace
}  // namespace gatehouse
