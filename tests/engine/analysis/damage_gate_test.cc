#include "server/engine/analysis/damage_gate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "server/engine/analysis/operating_points.h"
#include "server/engine/analysis/surrogate_fit.h"
#include "server/engine/training/sensitivity.h"
#include "tests/engine/analysis/loaded_planted_model.h"

namespace gatehouse {
namespace {

using testing::PlantedCorpus;

constexpr int kDamageWindow = 64;
constexpr int kDamageSinks = 4;

SplitStream Text(const ModelWeights& model, int64_t count, uint64_t seed) {
  std::vector<int64_t> blocks(count);
  std::iota(blocks.begin(), blocks.end(), 0);
  return SplitStream(model, PlantedCorpus(count * kDamageWindow, seed), blocks, kDamageWindow);
}

class DamageGate : public ::testing::Test {
 protected:
  const std::atomic<bool> cancelled_{false};
  const ProgressFn progress_;
  Work work_{1e9, progress_, cancelled_};
  const ModelWeights model_ = testing::LoadPlantedModel();
};

TEST_F(DamageGate, KnowsWhatASmallChangeOfAnMlpDoesToThePredictions) {
  constexpr int kLayer = 1, kToken = 20, kDraws = 100;
  at::manual_seed(4);
  const at::Tensor change = 0.02 * at::randn({model_.config.d_model});
  const at::Tensor ids = Text(model_, 1, 3).ids();
  const auto log_probs = [&](double scale) {
    return PlainForward(model_, ids,
                        [&](int layer, const at::Tensor& x) {
                          at::Tensor y = PlainMlp(model_, layer, x);
                          if (layer == kLayer) y.select(1, kToken) += scale * change;
                          return y;
                        })
        .to(at::kDouble)
        .log_softmax(-1);
  };
  const at::Tensor full = log_probs(0);
  const double measured = (full.exp() * (full - log_probs(1))).sum().item<double>();

  double predicted = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    ASSERT_TRUE(
        ForSensitivities(model_, ids, draw, work_, [&](int layer, const at::Tensor&, const at::Tensor& gradient) {
          if (layer != kLayer) return;
          const double along = gradient[0][kToken].dot(change).item<double>();
          predicted += 0.5 * along * along / kDraws;
        }).ok());
  }
  // A draw's square scatters by √2 of its mean.
  EXPECT_NEAR(predicted, measured, 4 * std::sqrt(2.0 / kDraws) * measured);
}

TEST_F(DamageGate, LetsTheLinearLayerGoFirstAndSetsThePriceForTheWantedWork) {
  SplitStream fit = Text(model_, 12, 5), gate = Text(model_, 12, 6);
  at::manual_seed(5);
  const int64_t d = model_.config.d_model;
  std::vector<CheapPaths> paths(model_.config.layers);
  for (size_t layer = 0; layer < paths.size(); ++layer) {
    ASSERT_TRUE(fit.Enter(static_cast<int>(layer), work_).ok());
    RidgeSums sums(d, d, at::kCPU);
    const at::Tensor x = fit.x().flatten(0, 1);
    sums.Add(x, PlainMlp(model_, static_cast<int>(layer), x));
    const auto surrogate = sums.Solve(0.01);
    ASSERT_TRUE(surrogate.ok());
    paths[layer].surrogate_weight = surrogate->weight;
    paths[layer].surrogate_bias = surrogate->bias;
    ASSERT_TRUE(fit.Leave(work_).ok());
  }
  constexpr double kWanted = 0.4;
  ASSERT_TRUE(SetDamageGates(model_, kDamageSinks, kWanted, 1, gate, paths, work_).ok());
  ASSERT_TRUE(gate.MeasureFull(work_).ok());
  const auto run = RunAtPoint(model_, paths, ShiftedPoint(paths, 0), kDamageSinks, gate, work_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->traffic[0].linear, gate.blocks() * (kDamageWindow - kDamageSinks));
  // The price is set on the full model's stream; the gated one differs.
  EXPECT_NEAR(MlpWorkSaved(WorkShape(model_.config), run->traffic),
              kWanted * (kDamageWindow - kDamageSinks) / kDamageWindow, 0.03);
}

}  // namespace
}  // namespace gatehouse
