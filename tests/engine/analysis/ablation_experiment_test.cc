#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "server/engine/training/plain_forward.h"
#include "tests/engine/analysis/planted_consensus.h"

namespace gatehouse {
namespace {

using ::testing::Each;
using testing::ExpectSound;
using testing::Floats;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPlantedLayer;
using testing::Load;
using testing::LoadWithMemory;
using testing::Numbers;
using testing::Planting;
using testing::RowsWith;
using testing::RunOn;
using testing::Spec;
using testing::Table;
using testing::Text;
using testing::TextToRemember;

// What zeroing a layer's MLP where `mask` says does to each token.
struct Oracle {
  at::Tensor delta, kl;  // [blocks, window − 1] float64
};
Oracle Zeroed(const ModelWeights& model, const at::Tensor& ids, int layer, const at::Tensor& mask) {
  const MlpFn mlp = [&](int of, const at::Tensor& x) {
    const at::Tensor y = PlainMlp(model, of, x);
    return of == layer ? y.masked_fill(mask.unsqueeze(-1), 0) : y;
  };
  const auto log_probabilities = [&](const MlpFn& through) {
    return PlainForward(model, ids, through).narrow(1, 0, ids.size(1) - 1).to(at::kDouble).log_softmax(-1);
  };
  const at::Tensor full = log_probabilities(nullptr), changed = log_probabilities(mlp);
  const at::Tensor targets = ids.narrow(1, 1, ids.size(1) - 1).unsqueeze(-1);
  return {(full - changed).gather(-1, targets).squeeze(-1), (full.exp() * (full - changed)).sum(-1)};
}

class Ablation : public ::testing::TestWithParam<Planting> {};

TEST_P(Ablation, ShowsTheDamageAtTheLevelWhereTheLayerMatters) {
  const auto [planted, noise] = GetParam();
  ExperimentSpec spec = Spec(AblationMethod{});
  spec.options.layers = {kPlantedLayer};
  const auto result = RunOn(LoadWithMemory({.consensus = planted, .noise = noise}), spec, {TextToRemember(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  for (const char* name : {"levels", "levels_no_sinks", "levels_alone"}) {
    const ReportTable& levels = Table(*result, name);
    ASSERT_EQ(Numbers(levels, "level").size(), static_cast<size_t>(planted) + 1);
    EXPECT_GT(Numbers(levels, "delta_ce_low")[0], 0.5) << name;
    EXPECT_GT(Numbers(levels, "delta_ce_low")[0], Numbers(levels, "delta_ce_high")[planted]) << name;
    EXPECT_GT(Numbers(levels, "kl_low")[0], Numbers(levels, "kl_high")[planted]) << name;
    EXPECT_NEAR(Numbers(levels, "change")[0], std::expm1(Numbers(levels, "delta_ce")[0]), 1e-9) << name;
    for (int level = 1; level < planted; ++level) EXPECT_EQ(Numbers(levels, "tokens")[level], 0);
  }
  // In the last layer, zeroing a level is zeroing all, seen at that level.
  for (const int level : {0, planted}) {
    EXPECT_EQ(Numbers(Table(*result, "levels_alone"), "delta_ce")[level],
              Numbers(Table(*result, "levels_no_sinks"), "delta_ce")[level]);
  }
  const ReportTable& layers = Table(*result, "layers");
  EXPECT_EQ(Numbers(layers, "consensus")[0], planted);
  EXPECT_GT(Numbers(layers, "contrast_low")[0], 0);
  EXPECT_NEAR(Numbers(layers, "contrast")[0], Numbers(layers, "minority")[0] - Numbers(layers, "majority")[0], 1e-9);
  EXPECT_THAT(result->report.summary, HasSubstr("in 1 the tokens without a majority"));
}

INSTANTIATE_TEST_SUITE_P(Planted, Ablation, ::testing::ValuesIn(testing::kPlantings));

TEST(AblationExperiment, OfALayerInTheMiddleZeroesEachLevelInAPassOfItsOwn) {
  ModelWeights model = Load({.consensus = 2});
  model.layers[1].mlp_in = model.layers[kPlantedLayer].mlp_in;
  model.layers[1].mlp_out = model.layers[kPlantedLayer].mlp_out;
  ExperimentSpec spec = Spec(AblationMethod{});
  spec.options.layers = {1};
  const auto result = RunOn(model, spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  const at::Tensor ids = testing::ReportTokens(model, spec, Text(1));
  const int64_t predicted = ids.size(1) - 1;
  const at::Tensor far = testing::FarSide(ids), all = at::ones_like(far);
  at::Tensor kept = all.clone();
  kept.narrow(1, 0, 4).fill_(false);

  const Oracle everywhere = Zeroed(model, ids, 1, all), no_sinks = Zeroed(model, ids, 1, kept);
  EXPECT_TRUE(at::allclose(Floats(*result, "delta_ce.1")[0].to(at::kDouble), everywhere.delta, 1e-3, 1e-4));
  EXPECT_TRUE(at::allclose(Floats(*result, "kl.1")[0].to(at::kDouble), everywhere.kl, 1e-3, 1e-4));
  const ReportTable& layers = Table(*result, "layers");
  EXPECT_NEAR(std::log1p(Numbers(layers, "change")[0]), everywhere.delta.mean().item<double>(), 1e-5);
  EXPECT_NEAR(std::log1p(Numbers(layers, "change_no_sinks")[0]), no_sinks.delta.mean().item<double>(), 1e-5);
  EXPECT_NEAR(Numbers(layers, "kl_no_sinks")[0], no_sinks.kl.mean().item<double>(), 1e-5);
  for (const int level : {0, 2}) {
    const at::Tensor here = (level == 0 ? far : ~far) & kept, seen = here.narrow(1, 0, predicted);
    const Oracle alone = Zeroed(model, ids, 1, here);
    const auto expect = [&](const char* name, const Oracle& oracle) {
      const ReportTable& table = Table(*result, name);
      EXPECT_EQ(Numbers(table, "tokens")[level], seen.sum().item<double>()) << name;
      EXPECT_NEAR(Numbers(table, "delta_ce")[level], oracle.delta.index({seen}).mean().item<double>(), 1e-5) << name;
      EXPECT_NEAR(Numbers(table, "kl")[level], oracle.kl.index({seen}).mean().item<double>(), 1e-5) << name;
      EXPECT_NEAR(std::log1p(Numbers(table, "whole_change")[level]), oracle.delta.mean().item<double>(), 1e-5) << name;
    };
    expect("levels", everywhere);
    expect("levels_no_sinks", no_sinks);
    expect("levels_alone", alone);
  }
}

TEST(AblationExperiment, HasNoLevelsWhereThereIsNoConsensus) {
  const auto result = RunOn(Load({.random_weights = true}), Spec(AblationMethod{}), {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_THAT(Numbers(Table(*result, "levels"), "level"), IsEmpty());
  const ReportTable& layers = Table(*result, "layers");
  EXPECT_THAT(Numbers(layers, "consensus"), Each(0));
  EXPECT_THAT(Numbers(layers, "contrast"), Each(::testing::IsNan()));
  EXPECT_THAT(Numbers(layers, "kl"), Each(::testing::Gt(0)));
}

}  // namespace
}  // namespace gatehouse
