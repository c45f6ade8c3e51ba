#include "server/engine/analysis/experiments.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "server/base/strings.h"
#include "server/engine/analysis/calibrate.h"
#include "tests/engine/analysis/experiment_run.h"
#include "tests/support/planted_model.h"
#include "tests/support/planted_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::_;
using ::testing::Each;
using testing::ExpectSound;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kCorpusTokens;
using testing::Load;
using testing::Numbers;
using testing::PlantedCorpus;
using testing::RunOn;
using testing::Spec;
using testing::StatusIs;
using testing::Strings;
using testing::Table;
using testing::Text;

// A model and a text with a memory: after every word of the far side, and there alone, comes
// kSuccessor, and layer 3's exception neuron, which fires there alone, says so.  No line
// follows that neuron, so a linear layer 3 forgets.
constexpr int32_t kSuccessor = testing::kFirstWord + 1;
constexpr int kMemoryLayer = 3;

bool IsFar(int32_t token) { return token >= testing::kFirstWord && (token - testing::kFirstWord) % 25 == 0; }

ModelWeights LoadWithMemory() {
  ModelWeights model = Load({.noise = false});
  at::Tensor& out = model.layers[kMemoryLayer].mlp_out.weight;  // [d_model, d_mlp]
  constexpr int kException = 123;
  out.select(1, kException).copy_(0.12 * model.token_embedding[kSuccessor]);
  return model;
}

Corpus TextToRemember(uint64_t seed, int64_t tokens, std::string label) {
  Corpus corpus{std::move(label), "def", PlantedCorpus(tokens, seed)};
  for (size_t i = 1; i < corpus.tokens.size(); ++i) {
    if (IsFar(corpus.tokens[i - 1])) corpus.tokens[i] = kSuccessor;
  }
  return corpus;
}

TEST(LinearizationExperiment, AnMlpThatIsLinearCostsNothingAndTheFiguresAreTheCalibrations) {
  const ModelWeights model = Load({.sink = true});
  const auto result = RunOn(model, Spec(LinearizationCostMethod{}), {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  const ReportTable& table = Table(*result, "layers");
  EXPECT_NEAR(Numbers(table, "r2")[0], 1, 1e-6);
  EXPECT_NEAR(Numbers(table, "cost")[0], 0, 1e-5);
  EXPECT_NEAR(Numbers(table, "cost_high")[0], 0, 1e-4);
  EXPECT_NEAR(Numbers(table, "cost_with_sinks")[0], 0, 1e-5);

  const std::atomic<bool> cancelled{false};
  const auto calibration = Calibrate(model, {}, Text(1).tokens, nullptr, cancelled);
  ASSERT_TRUE(calibration.ok());
  for (int layer = 0; layer < 4; ++layer) {
    const LayerCalibration& same = calibration->info.layers[layer];
    EXPECT_NEAR(Numbers(table, "cost")[layer], same.linear_cost, 1e-5) << layer;
    EXPECT_NEAR(Numbers(table, "cost_with_sinks")[layer], same.linear_cost_with_sinks,
                1e-5 * (1 + same.linear_cost_with_sinks));
    EXPECT_NEAR(Numbers(table, "r2")[layer], same.surrogate_r2, 1e-6) << layer;
    EXPECT_LE(Numbers(table, "cost_low")[layer], Numbers(table, "cost")[layer]);
    EXPECT_GE(Numbers(table, "cost_high")[layer], Numbers(table, "cost")[layer]);
  }
  // The sink wrecks layer 1 only where it is not left alone.
  EXPECT_LT(Numbers(table, "cost_high")[1], 0.2);
  EXPECT_GT(Numbers(table, "cost_with_sinks")[1], 1);
  EXPECT_EQ(result->report.kind, "linearization_cost");
  EXPECT_EQ(result->report.corpora.at(0).tokens, kCorpusTokens);
}

TEST(LinearizationExperiment, RunsTheChosenLayersOnEveryCorpus) {
  const ModelWeights model = Load();
  ExperimentSpec spec = Spec(LinearizationCostMethod{});
  const auto all = RunOn(model, spec, {Text(1, 6000)});
  spec.options.layers = {3, 1};
  const auto some = RunOn(model, spec, {Text(1, 6000, ""), Text(2, 6000, "")});
  ASSERT_TRUE(all.ok() && some.ok()) << some.status();
  ExpectSound(*some);
  const ReportTable& table = Table(*some, "layers");
  EXPECT_THAT(Numbers(table, "layer"), ::testing::ElementsAre(1, 3, 1, 3));
  EXPECT_THAT(Strings(table, "corpus"), ::testing::ElementsAre("corpus 1", "corpus 1", "corpus 2", "corpus 2"));
  EXPECT_EQ(Numbers(table, "cost")[0], Numbers(Table(*all, "layers"), "cost")[1]);
  EXPECT_EQ(Numbers(table, "cost")[1], Numbers(Table(*all, "layers"), "cost")[3]);
}

TEST(GateSweep, RoutesLessAtHigherThresholdsAndNothingAtOne) {
  const ModelWeights model = Load();
  const GateSweepMethod method{.thresholds = {0, 0.3, 0.5, 0.7, 1}, .bottlenecks = {1, 3}};
  ExperimentSpec spec = Spec(method);
  spec.options.layers = {0, 3};
  const auto result = RunOn(model, spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  const ReportTable& sweep = Table(*result, "sweep");
  const std::vector<double>&threshold = Numbers(sweep, "threshold"), &fraction = Numbers(sweep, "linear_fraction");
  const std::vector<double>& cost = Numbers(sweep, "cost");
  ASSERT_EQ(threshold.size(), 2 * 4 * method.thresholds.size());
  for (size_t i = 0; i < threshold.size(); ++i) {
    if (threshold[i] == 1) {
      EXPECT_EQ(fraction[i], 0);
      EXPECT_NEAR(cost[i], 0, 1e-5);
    }
    if (threshold[i] == 0) {
      EXPECT_NEAR(fraction[i], 124.0 / 128, 1e-3);  // all but the sinks
    } else {
      EXPECT_LE(fraction[i], fraction[i - 1]);
    }
    if (Strings(sweep, "gate")[i] == "random" && threshold[i] > 0 && threshold[i] < 1) {
      EXPECT_NEAR(fraction[i], (1 - threshold[i]) * 124 / 128, 0.06);
    }
    if (Numbers(sweep, "layer")[i] == 0) {
      EXPECT_NEAR(cost[i], 0, 1e-5);
    }
  }

  const std::atomic<bool> cancelled{false};
  const auto calibration = Calibrate(model, {}, Text(1).tokens, nullptr, cancelled);
  ASSERT_TRUE(calibration.ok());
  const LayerCalibration& same = calibration->info.layers[3];
  for (size_t i = 0; i < threshold.size(); ++i) {
    if (Numbers(sweep, "layer")[i] != 3 || threshold[i] != 0.5 || Strings(sweep, "gate")[i] != "logistic") continue;
    EXPECT_NEAR(fraction[i], same.gate_linear_fraction, 1e-6);
    EXPECT_NEAR(cost[i], same.gate_cost, 1e-6);
  }
}

TEST(GateSweep, ChoosesOneGateALayerAtEqualWorkAndTheGateBeatsChance) {
  const ModelWeights model = LoadWithMemory();
  ExperimentSpec spec = Spec(GateSweepMethod{.thresholds = {0.5}, .bottlenecks = {1}});
  spec.options.layers = {3};
  const auto result = RunOn(model, spec, {TextToRemember(1, 20'000, "text")});
  ASSERT_TRUE(result.ok()) << result.status();
  const ReportTable& half = Table(*result, "equal_work");
  const std::vector<double>&chosen = Numbers(half, "chosen"), &select = Numbers(half, "select_cost");
  EXPECT_THAT(Strings(half, "gate"), ::testing::ElementsAre("logistic", "pca_2", "random"));
  EXPECT_EQ(std::count(chosen.begin(), chosen.end(), 1), 1);
  EXPECT_EQ(chosen[select[0] <= select[1] ? 0 : 1], 1);
  EXPECT_THAT(Numbers(half, "linear_fraction"), Each(::testing::DoubleNear(0.5 * 124 / 128, 1e-3)));
  // The gate finds the far side, where a linear layer forgets.
  EXPECT_GT(Numbers(half, "auc_low")[0], 0.5);
  EXPECT_LT(Numbers(half, "auc_low")[2], 0.5);
  EXPECT_GT(Numbers(half, "auc_high")[2], 0.5);
  EXPECT_LT(Numbers(half, "against_random_high")[0], 0);
  EXPECT_EQ(Numbers(half, "against_random")[2], 0);
  EXPECT_EQ(Numbers(Table(*result, "chosen"), "threshold").size(), 1u);
}

TEST(Routability, OfTokensThatDoNotMixNeedsNoContext) {
  // Without attention that mixes, everything follows from the token: contexts of equal tokens
  // are equal, and shuffling them changes nothing.
  const ModelWeights model = Load({.noise = false});
  ExperimentSpec spec = Spec(RoutabilityMethod{});
  spec.options.layers = {3};
  const auto result = RunOn(model, spec, {Text(1, 30'000)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  const ReportTable &gates = Table(*result, "gates"), &differences = Table(*result, "differences");
  ASSERT_EQ(Strings(gates, "gate").front(), "identity");
  EXPECT_GT(Numbers(gates, "auc_low").front(), 0.5);
  ASSERT_EQ(Strings(differences, "gates").back(), "context - shuffled");
  EXPECT_NEAR(Numbers(differences, "difference").back(), 0, 1e-4);
  EXPECT_NEAR(Numbers(gates, "base_rate").front(), 0.5, 0.05);
}

TEST(NoFly, ListsTheTokensThatALinearLayerForgetsOnEveryText) {
  const ModelWeights model = LoadWithMemory();
  // What the surrogate misplaces harms other words too, but less.
  ExperimentSpec spec = Spec(NoFlyMethod{.least_mean = 0.5});
  spec.options.layers = {0, kMemoryLayer};
  spec.token_text = [](int32_t token) { return StrCat("<", token, ">"); };
  const auto result = RunOn(model, spec, {TextToRemember(1, 40'000, "one"), TextToRemember(2, 40'000, "two")});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  const ReportTable& listed = Table(*result, "listed");
  int far = 0, others = 0;
  std::set<double> targets;
  for (size_t i = 0; i < Numbers(listed, "token").size(); ++i) {
    EXPECT_EQ(Numbers(listed, "layer")[i], kMemoryLayer) << "a linear layer harms nothing";
    EXPECT_GT(Numbers(listed, "mean")[i], 0.5);
    const auto token = static_cast<int32_t>(Numbers(listed, "token")[i]);
    EXPECT_EQ(Strings(listed, "text")[i], StrCat("<", token, ">"));
    if (Strings(listed, "token_is")[i] == "target") {
      targets.insert(token);
    } else {
      (IsFar(token) ? far : others) += 1;
    }
  }
  EXPECT_GT(far, 60);  // of 49 words on two texts
  EXPECT_LT(others, far / 20);
  EXPECT_TRUE(targets.contains(kSuccessor));

  // Rows of the memory's layer: one by one, one by two, two by one, two by two.
  const ReportTable& agreement = Table(*result, "agreement_processed");
  ASSERT_EQ(Numbers(agreement, "judged").size(), 8u);
  EXPECT_EQ(Strings(agreement, "lister")[5], "one");
  EXPECT_EQ(Strings(agreement, "judge")[5], "two");
  EXPECT_GT(Numbers(agreement, "judged")[5], 20);
  EXPECT_EQ(Numbers(agreement, "flipped")[5], 0);
  EXPECT_GT(Numbers(agreement, "r_listed")[5], 0);
  EXPECT_GT(Numbers(agreement, "r_shared")[5], 0.8);
  EXPECT_GT(Numbers(agreement, "reliability_lister")[5], 0.8);
  EXPECT_LT(Numbers(agreement, "listed_by_chance")[5], 0.3 * Numbers(agreement, "listed")[5]);
  EXPECT_THAT(result->report.summary, HasSubstr("one lists"));
}

TEST(NoFly, ListsNothingWhereALinearLayerHarmsNothing) {
  const ModelWeights model = Load({.random_weights = true});
  ExperimentSpec spec = Spec(NoFlyMethod{});
  spec.options.layers = {0};
  const auto result = RunOn(model, spec, {Text(1, 20'000, "one"), Text(2, 20'000, "two"), Text(3, 20'000, "three")});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_THAT(Numbers(Table(*result, "listed"), "token"), IsEmpty());
  EXPECT_EQ(Numbers(Table(*result, "agreement_target"), "listed").size(), 9u);
  EXPECT_THAT(Numbers(Table(*result, "agreement_target"), "listed"), Each(0));
  EXPECT_THAT(Numbers(Table(*result, "agreement_target"), "flipped_share"), Each(::testing::IsNan()));
}

TEST(Experiments, ReportProgressFromNothingToDoneInOrderAndStopWhenCancelled) {
  const ModelWeights model = Load();
  for (const ExperimentMethod& method :
       {ExperimentMethod(LinearizationCostMethod{}),
        ExperimentMethod(GateSweepMethod{.thresholds = {0.3, 0.6}, .bottlenecks = {1}}),
        ExperimentMethod(RoutabilityMethod{}), ExperimentMethod(NoFlyMethod{})}) {
    ExperimentSpec spec = Spec(method);
    spec.options.layers = {1, 2};
    const std::vector<Corpus> corpora = {Text(1, 4000), Text(2, 4000)};
    std::vector<double> fractions;
    const auto done =
        RunOn(model, spec, corpora, [&](double fraction, std::string_view) { fractions.push_back(fraction); });
    ASSERT_TRUE(done.ok()) << ExperimentKind(method) << done.status();
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end())) << ExperimentKind(method);
    EXPECT_EQ(fractions.front(), 0);
    EXPECT_EQ(fractions.back(), 1);
    EXPECT_GT(fractions[fractions.size() - 2], 0.9) << ExperimentKind(method);

    std::atomic<bool> cancelled{false};
    size_t calls = 0;
    const ProgressFn stop = [&](double, std::string_view) { cancelled = ++calls == fractions.size() / 2; };
    EXPECT_THAT(RunExperiment(model, spec, corpora, "", stop, cancelled), StatusIs(absl::StatusCode::kCancelled, _));
    EXPECT_EQ(calls, fractions.size() / 2);
  }
}

TEST(Experiments, RefuseWhatTheyCannotDo) {
  const ModelWeights model = Load();
  const auto refuses = [&](const ExperimentSpec& spec, const std::vector<Corpus>& corpora, const char* what) {
    EXPECT_THAT(RunOn(model, spec, corpora), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  const auto with = [](auto member, auto value) {
    ExperimentSpec spec = Spec(LinearizationCostMethod{});
    spec.options.*member = value;
    return spec;
  };
  const std::vector<Corpus> text = {Text(1, 4000)};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  refuses(with(&ExperimentOptions::layers, std::vector<int>{4}), text, "layers is 4, outside [0, 3]");
  refuses(with(&ExperimentOptions::layers, std::vector<int>{-1}), text, "layers is -1");
  refuses(with(&ExperimentOptions::layers, std::vector<int>{1, 2, 1}), text, "layers has 1 twice");
  refuses(with(&ExperimentOptions::bootstrap_resamples, 99), text, "bootstrap_resamples is 99, outside [100, 1000000]");
  refuses(with(&ExperimentOptions::bootstrap_resamples, 1'000'001), text, "bootstrap_resamples");
  refuses(with(&ExperimentOptions::ridge, nan), text, "ridge");
  refuses(with(&ExperimentOptions::sink_positions, -1), text, "sink_positions");
  refuses(Spec(GateSweepMethod{.thresholds = {nan}}), text, "thresholds");
  refuses(Spec(GateSweepMethod{.thresholds = {1.1}}), text, "thresholds is 1.1, outside [0, 1]");
  refuses(Spec(GateSweepMethod{.thresholds = {}}), text, "thresholds");
  refuses(Spec(GateSweepMethod{.bottlenecks = {33}}), text, "bottlenecks is 33, outside [1, 32]");
  refuses(Spec(GateSweepMethod{.bottlenecks = {1, 1}}), text, "bottlenecks has 1 twice");
  refuses(Spec(NoFlyMethod{}), text, "corpora has 1 entries; this needs at least 2");
  refuses(Spec(NoFlyMethod{.least_mean = nan}), {Text(1, 4000), Text(2, 4000)}, "least_mean");
  refuses(Spec(LinearizationCostMethod{}), {}, "corpora has 0 entries");
  refuses(Spec(LinearizationCostMethod{}), {Text(1, 4000), Text(2, 300, "short one")}, "short one: the corpus has 300");
  Corpus strange = Text(1, 4000);
  strange.tokens[17] = 1500;
  refuses(Spec(LinearizationCostMethod{}), {strange}, "token 17 of corpus 'planted' is 1500");
}

TEST(Experiments, FailWhereTheModelsNumbersAreNotFinite) {
  ModelWeights model = Load();
  model.layers[1].mlp_out.bias = at::full({64}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(RunOn(model, Spec(LinearizationCostMethod{}), {Text(1, 4000)}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("not finite")));
}

}  // namespace
}  // namespace gatehouse
