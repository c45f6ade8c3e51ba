#include "server/engine/analysis/ladder_fit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "server/engine/training/gated_forward.h"
#include "tests/engine/analysis/loaded_planted_model.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using testing::PlantedCorpus;

// Layer 0 of the planted model is linear on its inputs.
constexpr int kLayer = 0;
constexpr int kFitWindow = 128;

// Takes the bias from some neurons: they fold at zero.
void Fold(ModelWeights& model, const std::vector<int64_t>& neurons) {
  at::Tensor& bias = model.layers[kLayer].mlp_in.bias;
  bias = bias.clone();
  for (const int64_t neuron : neurons) bias[neuron] = 0;
}

struct Fitted {
  Ladder ladder;
  double worst = 0;  // largest difference from the MLP, on the tokens fitted on
};

absl::StatusOr<Fitted> Fit(const ModelWeights& model, int neurons, double norm_limit = 1e9) {
  const std::vector<int32_t> tokens = PlantedCorpus(20 * kFitWindow, 1);
  std::vector<int64_t> blocks(20);
  std::iota(blocks.begin(), blocks.end(), 0);
  SplitStream split(model, tokens, blocks, kFitWindow);
  const std::atomic<bool> cancelled{false};
  const ProgressFn progress;
  Work work(1, progress, cancelled);
  EXPECT_TRUE(split.Enter(kLayer, work).ok());
  auto ladder = FitLadder(model, kLayer, split, neurons, 4, norm_limit, 0.01, work);
  if (!ladder.ok()) return ladder.status();
  CheapPaths paths;
  paths.ladder_weight = ladder->rest.weight;
  paths.ladder_bias = ladder->rest.bias;
  paths.ladder_neurons = ladder->neurons;
  const at::Tensor x = split.x();
  const at::Tensor written = LadderWrites(model, kLayer, paths, x, PlainNeurons(model, kLayer, x));
  return Fitted{*std::move(ladder), (written - PlainMlp(model, kLayer, x)).abs().max().item<double>()};
}

TEST(LadderFit, KeepsTheNeuronsThatFoldAndIsThenExact) {
  ModelWeights model = testing::LoadPlantedModel();
  const std::vector<int64_t> folding = {3, 77, 78, 200, 255};
  Fold(model, folding);
  const auto fitted = Fit(model, static_cast<int>(folding.size()));
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_TRUE(fitted->ladder.neurons.equal(at::tensor(folding))) << fitted->ladder.neurons;
  EXPECT_LT(fitted->worst, 2e-3);
  // One neuron fewer leaves its fold to a linear map.
  const auto fewer = Fit(model, static_cast<int>(folding.size()) - 1);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_GT(fewer->worst, 10 * fitted->worst);
}

TEST(LadderFit, WeighsANeuronByWhatItWrites) {
  ModelWeights model = testing::LoadPlantedModel();
  Fold(model, {10, 20});
  at::Tensor& out = model.layers[kLayer].mlp_out.weight;
  out = out.clone();
  out.select(1, 10).fill_(0);
  const auto fitted = Fit(model, 1);
  ASSERT_TRUE(fitted.ok()) << fitted.status();
  EXPECT_EQ(fitted->ladder.neurons.item<int64_t>(), 20);
}

TEST(LadderFit, RefusesWhereEveryTokenIsASink) {
  const auto fitted = Fit(testing::LoadPlantedModel(), 3, /*norm_limit=*/-1);
  EXPECT_THAT(fitted.status(), testing::StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::_));
}

}  // namespace
}  // namespace gatehouse
