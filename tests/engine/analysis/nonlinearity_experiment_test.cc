#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "server/engine/analysis/calibrate.h"
#include "server/engine/analysis/nonlinearity.h"
#include "tests/engine/analysis/experiment_run.h"
#include "tests/support/planted_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::Each;
using testing::ExpectSound;
using ::testing::HasSubstr;
using testing::Load;
using ::testing::Not;
using testing::Numbers;
using testing::RunOn;
using testing::Spec;
using testing::StatusIs;
using testing::Strings;
using testing::Table;
using testing::Text;

bool IsFar(int32_t token) { return token >= testing::kFirstWord && (token - testing::kFirstWord) % 25 == 0; }

TEST(Nonlinearity, OfAnExactlyLinearLayerIsNoneAndTheFiguresAreTheCalibrations) {
  const ModelWeights model = Load({.sink = true});
  const auto result = RunOn(model, Spec(NonlinearityMethod{}), {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_EQ(result->report.kind, "nonlinearity");
  const ReportTable& layers = Table(*result, "layers");
  EXPECT_NEAR(Numbers(layers, "r2")[0], 1, 1e-6);
  EXPECT_LT(Numbers(layers, "relative_p95")[0], 1e-4);
  EXPECT_GT(Numbers(layers, "relative_p50")[2], 0.1);

  const std::atomic<bool> cancelled{false};
  const auto calibration = Calibrate(model, {}, Text(1).tokens, nullptr, cancelled);
  ASSERT_TRUE(calibration.ok());
  for (size_t i = 1; i < 4; ++i) {
    const LayerCalibration& same = calibration->info.layers[i];
    EXPECT_NEAR(Numbers(layers, "p25")[i], same.p25, 1e-5 * same.p25) << i;
    EXPECT_NEAR(Numbers(layers, "p50")[i], same.p50, 1e-5 * same.p50) << i;
    EXPECT_NEAR(Numbers(layers, "p70")[i], same.p70, 1e-5 * same.p70) << i;
    EXPECT_NEAR(Numbers(layers, "p95")[i], same.p95, 1e-5 * same.p95) << i;
    EXPECT_LE(Numbers(layers, "r2_low")[i], Numbers(layers, "r2")[i]);
    EXPECT_GE(Numbers(layers, "r2_high")[i], Numbers(layers, "r2")[i]);
  }
}

TEST(Nonlinearity, RegimesHoldTheTokensThatTheirPercentilesSayAndAllOfThem) {
  ExperimentSpec spec = Spec(NonlinearityMethod{});
  spec.options.layers = {1, 3};
  const auto result = RunOn(Load(), spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  const ReportTable &regimes = Table(*result, "regimes"), &layers = Table(*result, "layers");
  for (size_t layer = 0; layer < 2; ++layer) {
    const double tokens = Numbers(layers, "tokens")[layer];
    double share = 0, residual = 0;
    for (size_t i = 4 * layer; i < 4 * layer + 4; ++i) {
      share += Numbers(regimes, "share")[i];
      residual += Numbers(regimes, "residual_share")[i];
    }
    EXPECT_NEAR(share, 1, 1e-12);
    EXPECT_NEAR(residual, 1, 1e-12);
    EXPECT_NEAR(Numbers(regimes, "tokens")[4 * layer], 0.25 * tokens, 1);
    EXPECT_NEAR(Numbers(regimes, "tokens")[4 * layer + 2], 0.2 * tokens, 2);
    EXPECT_NEAR(Numbers(regimes, "tokens")[4 * layer + 3], 0.05 * tokens, 1);
    EXPECT_EQ(Strings(regimes, "regime")[4 * layer + 3], "high");
    EXPECT_EQ(Numbers(layers, "high_residual_share")[layer], Numbers(regimes, "residual_share")[4 * layer + 3]);
  }
}

TEST(Nonlinearity, IsLargestWhereTheExceptionNeuronFires) {
  ExperimentSpec spec = Spec(NonlinearityMethod{.clusters = 2});
  spec.options.layers = {3};
  spec.token_text = [](int32_t token) { return StrCat("<", token, ">"); };
  const auto result = RunOn(Load({.noise = false}), spec, {Text(1, 25'000)});
  ASSERT_TRUE(result.ok()) << result.status();
  const ReportTable& tokens = Table(*result, "tokens");
  const std::vector<double>& token = Numbers(tokens, "token");
  ASSERT_EQ(token.size(), 10u);
  for (size_t i = 0; i < token.size(); ++i) {
    EXPECT_TRUE(IsFar(static_cast<int32_t>(token[i]))) << token[i];
    EXPECT_EQ(Strings(tokens, "text")[i], StrCat("<", static_cast<int>(token[i]), ">"));
    EXPECT_GE(Numbers(tokens, "count")[i], 5);
  }
  EXPECT_THAT(Numbers(tokens, "high_share"), Each(::testing::Gt(0.5)));
}

TEST(Nonlinearity, ClustersAreShownOnlyOfLayersThatHaveThem) {
  // Layer 3's most nonlinear tokens are those of the far side, with one pattern, and some of
  // the others, with another.
  ExperimentSpec spec = Spec(NonlinearityMethod{.clusters = 2});
  spec.options.layers = {2, 3};
  spec.options.gate_tokens = 15'000;
  const auto result = RunOn(Load({.noise = false}), spec, {Text(1, 30'000)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  const ReportTable &structure = Table(*result, "structure"), &clusters = Table(*result, "clusters");
  ASSERT_EQ(Numbers(structure, "structure").size(), 2u);
  EXPECT_EQ(Numbers(structure, "structure")[1], 1);
  EXPECT_GT(Numbers(structure, "silhouette")[1], Numbers(structure, "null_highest")[1]);
  double size = 0;
  for (size_t i = 0; i < Numbers(clusters, "layer").size(); ++i) {
    const auto at = static_cast<size_t>(Numbers(clusters, "layer")[i] - 2);
    EXPECT_EQ(Numbers(structure, "structure")[at], 1);
    if (at == 1) size += Numbers(clusters, "tokens")[i];
    EXPECT_THAT(Strings(clusters, "commonest")[i], HasSubstr("["));  // ids, since texts are not known
    EXPECT_THAT(Strings(clusters, "examples")[i], HasSubstr("‹["));
    EXPECT_GT(Numbers(clusters, "commonest_share")[i], 0);
  }
  EXPECT_EQ(size, Numbers(structure, "tokens")[1]);
}

TEST(Nonlinearity, TheScoresOfALongTextAreThoseOfItsParts) {
  // More than 10,000 tokens take two slabs.
  ExperimentSpec spec = Spec(NonlinearityMethod{}, 100);
  spec.options.layers = {3};
  spec.options.report_tokens = 10'000;
  const auto result = RunOn(Load(), spec, {Text(1, 24'000)});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto array = [&](const std::string& name) {
    return *std::find_if(result->arrays.begin(), result->arrays.end(), [&](const auto& a) { return a.name == name; });
  };
  const auto scores = std::get<std::vector<float>>(array("score.1").values);
  const auto kept = std::get<std::vector<int64_t>>(array("kept.1").values);
  ASSERT_EQ(scores.size(), kept.size());
  ASSERT_GT(scores.size(), 10'000u);
  const auto norms = std::get<std::vector<float>>(array("output_norm.1").values);
  std::vector<double> used, relative;
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(kept[i] == 0, i % 128 < 4) << i;
    if (!kept[i]) continue;
    used.push_back(scores[i]);
    relative.push_back(scores[i] / norms[i]);
  }
  EXPECT_NEAR(Numbers(Table(*result, "layers"), "p95")[0], PercentilesOf(used).p95, 1e-6);
  EXPECT_NEAR(Numbers(Table(*result, "layers"), "relative_p50")[0], PercentilesOf(relative).p50, 1e-6);
  const auto cluster = std::get<std::vector<int64_t>>(array("cluster.1").values);
  for (size_t i = 0; i < cluster.size(); ++i) {
    if (cluster[i] < 0) continue;
    EXPECT_GT(scores[i], Numbers(Table(*result, "layers"), "p95")[0]);
  }
}

// The MLP of layer 0 made a polynomial of degree 2 along one axis of what it reads: t (12 + t), a
// gated product whose gate never closes.  Many dimensions carry what t follows, so that it is
// their first principal axis.
ModelWeights LoadQuadratic() {
  ModelWeights model = Load({.noise = false});
  for (int i = 4; i < 24; ++i) {
    model.token_embedding.select(1, i).copy_(model.token_embedding.select(1, i % 2));
  }
  model.config.gated_mlp = true;
  model.config.activation = Activation::kRelu;
  at::Generator random = at::detail::createCPUGenerator(5);
  const int64_t d = model.config.d_model, m = model.config.d_mlp;
  at::Tensor in = at::zeros({m, d});
  in.select(1, 0).fill_(0.5);
  in.select(1, 1).fill_(-0.5);
  LinearWeights& mlp_in = model.layers[0].mlp_in;
  mlp_in.weight = at::cat({in, in});
  mlp_in.bias = at::cat({at::full({m}, 12.0), at::zeros({m})});
  model.layers[0].mlp_out.weight = 0.01 * at::randn({d, m}, random);
  return model;
}

TEST(PolynomialProbe, FindsTheDegreeOfAnMlpThatIsAPolynomial) {
  ExperimentSpec spec = Spec(PolynomialProbeMethod{.degrees = {2, 3}, .components = 4, .high_share = 1});
  spec.options.layers = {0};
  const auto result = RunOn(LoadQuadratic(), spec, {Text(1, 20'000)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_EQ(result->report.kind, "polynomial_probe");
  const ReportTable &powers = Table(*result, "powers"), &layers = Table(*result, "layers");
  EXPECT_THAT(Numbers(powers, "degree"), ::testing::ElementsAre(1, 2, 3));
  EXPECT_LT(Numbers(powers, "r2")[0], 0.1);
  EXPECT_GT(Numbers(powers, "r2")[1], 0.9);
  EXPECT_GT(Numbers(powers, "r2")[2], 0.9);
  EXPECT_EQ(Numbers(layers, "degree")[0], 2);
  EXPECT_GT(Numbers(layers, "gain")[0], 0.8);
  EXPECT_THAT(Strings(layers, "tokens"), ::testing::ElementsAre("all"));
  EXPECT_THAT(result->report.notes.back(), HasSubstr("newline"));
}

TEST(PolynomialProbe, LeavesNewlineTokensOutAndSaysWhich) {
  ExperimentSpec spec = Spec(PolynomialProbeMethod{.degrees = {2}, .components = 3, .high_share = 0.5});
  spec.options.layers = {3};
  spec.token_text = [](int32_t token) { return IsFar(token) ? std::string("\n\n") : StrCat("w", token, "\n"); };
  const auto result = RunOn(Load(), spec, {Text(1, 20'000)});
  ASSERT_TRUE(result.ok()) << result.status();
  const ReportTable& layers = Table(*result, "layers");
  EXPECT_THAT(Strings(layers, "tokens"), ::testing::ElementsAre("all", "without newlines"));
  EXPECT_GT(Numbers(layers, "newlines")[0], 50);
  EXPECT_EQ(Numbers(layers, "newlines")[1], 0);
  const auto& settings = result->report.settings;
  const auto found =
      std::find_if(settings.begin(), settings.end(), [](const auto& entry) { return entry.first == "newline_tokens"; });
  ASSERT_NE(found, settings.end());
  EXPECT_THAT(found->second, HasSubstr("\\n\\n"));
  EXPECT_THAT(found->second, Not(HasSubstr("w")));
}

TEST(PolynomialProbe, RefusesWhatTheTokensOrTheMemoryCannotBear) {
  const ModelWeights model = Load();
  ExperimentSpec spec = Spec(PolynomialProbeMethod{.components = 60, .high_share = 0.01});
  EXPECT_THAT(RunOn(model, spec, {Text(1)}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("components is 60")));
  ModelWeights wide = model;
  wide.config.d_model = 1024;
  spec = Spec(PolynomialProbeMethod{.components = 100});
  EXPECT_THAT(RunOn(wide, spec, {Text(1)}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5650 features")));
}

}  // namespace
}  // namespace gatehouse
