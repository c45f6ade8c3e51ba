#include "server/engine/analysis/whole_model_gating.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "server/engine/analysis/calibrate.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/operating_points.h"
#include "server/engine/training/budget_tuning.h"
#include "tests/engine/analysis/loaded_planted_model.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PlantedCorpus;
using testing::StatusIs;

constexpr int kWindowTokens = 64;
constexpr int kSinks = 4;

// Every MLP folds hard on every token: no linear map does, not even for a few.
ModelWeights NowhereLinear() {
  ModelWeights model = testing::LoadPlantedModel();
  at::manual_seed(3);
  for (LayerWeights& layer : model.layers) {
    layer.mlp_in.weight = at::randn_like(layer.mlp_in.weight) * 3;
    layer.mlp_in.bias = at::zeros_like(layer.mlp_in.bias);
    layer.mlp_out.weight = at::randn_like(layer.mlp_out.weight) * 0.5;
  }
  return model;
}

absl::StatusOr<CalibrationData> CalibrateTo(const ModelWeights& model, const BudgetOptions& budget,
                                            const ProgressFn& progress = nullptr, std::atomic<bool>* stop = nullptr) {
  CalibrateOptions options;
  options.window_tokens = kWindowTokens;
  options.fit_tokens = 1'000;
  options.gate_tokens = 1'000;
  options.select_tokens = 600;
  options.report_tokens = 600;
  options.budget = budget;
  const std::atomic<bool> go_on{false};
  return Calibrate(model, options, PlantedCorpus(4'000, 1), progress, stop == nullptr ? go_on : *stop);
}

// Some text of the planted corpus as a split with its full cross-entropies.
class Split {
 public:
  Split(const ModelWeights& model, int64_t blocks, uint64_t seed) : stream_(Make(model, blocks, seed)) {
    EXPECT_TRUE(stream_.MeasureFull(work_).ok());
  }
  SplitStream& stream() { return stream_; }
  Work& work() { return work_; }

 private:
  static SplitStream Make(const ModelWeights& model, int64_t count, uint64_t seed) {
    std::vector<int64_t> blocks(count);
    std::iota(blocks.begin(), blocks.end(), 0);
    return SplitStream(model, PlantedCorpus(count * kWindowTokens, seed), blocks, kWindowTokens);
  }
  const std::atomic<bool> cancelled_{false};
  const ProgressFn progress_;
  Work work_{1, progress_, cancelled_};
  SplitStream stream_;
};

// Paths that know little: each layer's surrogate, ladder and gate drawn at random, the
// surrogate no larger than what the MLP writes.
std::vector<CheapPaths> RandomPaths(const ModelWeights& model, double gate_bias, bool ladders = true) {
  at::manual_seed(7);
  const int64_t d = model.config.d_model;
  std::vector<CheapPaths> paths(model.config.layers);
  for (CheapPaths& of : paths) {
    of.surrogate_weight = at::randn({d, d}) * 0.05;
    of.surrogate_bias = at::zeros({d});
    of.gate_weight = at::randn({d}) * 0.5;
    of.gate_bias = at::full({1}, gate_bias);
    if (!ladders) continue;
    of.ladder_weight = at::randn({d, d}) * 0.05;
    of.ladder_bias = at::zeros({d});
    of.ladder_neurons = at::arange(0, model.config.d_mlp, 4);
    of.ladder_gap = at::full({1}, 0.5);
  }
  return paths;
}

double KlOf(const ModelWeights& model, const std::vector<CheapPaths>& paths, const at::Tensor& ids, double* saved) {
  std::vector<CheapPaths> learning = paths;
  learning[0].gate_bias = learning[0].gate_bias.clone().requires_grad_(true);  // something to go back to
  double divergence = 0;
  *saved = 0;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const at::Tensor sequence = ids.narrow(0, i, 1);
    const at::Tensor full = PlainLayers(model, PlainEmbed(model, sequence), 0, model.config.layers);
    const GatedLoss loss = AccumulateGatedLoss(model, learning, sequence, full, {.sinks = kSinks});
    divergence += loss.divergence / static_cast<double>(ids.size(0));
    *saved += loss.work_saved / static_cast<double>(ids.size(0));
  }
  return divergence;
}

TEST(GatedMlps, RunInFullAtThresholdsOfOne) {
  const ModelWeights model = testing::LoadPlantedModel();
  const auto paths = RandomPaths(model, 0);
  const std::vector<OperatingLayer> point(paths.size());
  GatedMlps mlps(model, paths, point, kSinks);
  const at::Tensor x = at::randn({2, 20, model.config.d_model});
  EXPECT_TRUE(mlps.Write(1, x).equal(PlainMlp(model, 1, x)));
  EXPECT_EQ(mlps.traffic()[1].full, 40);
  EXPECT_EQ(mlps.traffic()[1].gated, 0);
}

TEST(GatedMlps, GiveEachTokenThePathItsGateChoosesAndSinksTheirOwn) {
  const ModelWeights model = testing::LoadPlantedModel();
  const auto paths = RandomPaths(model, 0.2);
  const std::vector<OperatingLayer> point(paths.size(), {.linear_threshold = 0.7F, .ladder_threshold = 0.4F});
  GatedMlps mlps(model, paths, point, kSinks);
  const at::Tensor x = at::randn({2, 50, model.config.d_model});
  const at::Tensor written = mlps.Write(2, x);
  const at::Tensor p = at::sigmoid(GateLogits(paths[2], x));
  const at::Tensor full = PlainMlp(model, 2, x), linear = SurrogateWrites(paths[2], x);
  const at::Tensor ladder = LadderWrites(model, 2, paths[2], x, PlainNeurons(model, 2, x));
  int counts[3] = {0, 0, 0};
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 50; ++t) {
      const float value = p[b][t].item<float>();
      const int path = t < kSinks ? 0 : value > 0.7F ? 1 : value > 0.4F ? 2 : 0;
      ++counts[path];
      const at::Tensor& wanted = path == 0 ? full : path == 1 ? linear : ladder;
      EXPECT_TRUE(at::allclose(written[b][t], wanted[b][t], 1e-4, 1e-5)) << b << " " << t;
    }
  }
  const LayerTraffic& traffic = mlps.traffic()[2];
  EXPECT_EQ(traffic.full, counts[0]);
  EXPECT_EQ(traffic.linear, counts[1]);
  EXPECT_EQ(traffic.ladder, counts[2]);
  EXPECT_EQ(traffic.gated, 2 * (50 - kSinks));
  EXPECT_GT(std::min({counts[0], counts[1], counts[2]}), 10);
}

TEST(OperatingPoints, LeaveNoGateThatDecidesNothing) {
  const std::vector<OperatingLayer> point(4, {.linear_threshold = 0.5F, .ladder_threshold = 0.3F});
  const std::vector<LayerTraffic> traffic = {{.full = 4, .linear = 1000, .gated = 1000},
                                             {.full = 7, .linear = 2, .ladder = 995, .gated = 1000},
                                             {.full = 1000, .linear = 4, .gated = 1000},
                                             {.full = 14, .linear = 990, .gated = 1000}};
  const auto result = WithoutIdleGates(point, traffic);
  EXPECT_EQ(result[0], (OperatingLayer{-1, 1}));
  EXPECT_EQ(result[1], (OperatingLayer{1, -1}));
  EXPECT_EQ(result[2], (OperatingLayer{1, 1}));
  EXPECT_EQ(result[3], point[3]);
}

TEST(OperatingPoints, SaveLessTheHigherTheShift) {
  const ModelWeights model = testing::LoadPlantedModel();
  const auto paths = RandomPaths(model, 0);
  Split split(model, 4, 5);
  double before = 2;
  for (const double shift : {-3.0, -1.0, 0.0, 1.0, 3.0, 40.0}) {
    const auto run = RunAtPoint(model, paths, ShiftedPoint(paths, shift), kSinks, split.stream(), split.work());
    ASSERT_TRUE(run.ok()) << run.status();
    const double saved = MlpWorkSaved(WorkShape(model.config), run->traffic);
    EXPECT_LT(saved, before) << shift;
    before = saved;
  }
  EXPECT_EQ(before, 0);
}

TEST(OperatingPoints, KeepTheirBudgetOnTheSelectionSplitAndSaveMoreForMore) {
  const ModelWeights model = testing::LoadPlantedModel();
  const auto paths = RandomPaths(model, 0);
  Split select(model, 6, 5), report(model, 6, 6);
  const PointSearchOptions options{.budgets = {0.001, 0.05, 1}, .sinks = kSinks, .resamples = 100};
  const auto points = FindOperatingPoints(model, paths, options, select.stream(), report.stream(), select.work());
  ASSERT_TRUE(points.ok()) << points.status();
  ASSERT_EQ(points->size(), 3);
  for (const OperatingPoint& point : *points) {
    const auto run = RunAtPoint(model, paths, point.layers, kSinks, select.stream(), select.work());
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_LE(PerplexityChange(select.stream().full_cross_entropy(), run->cross_entropy), point.budget);
    EXPECT_LE(point.cost_low, point.cost);
    EXPECT_GE(point.cost_high, point.cost);
  }
  EXPECT_EQ(points->front().name, "0.1%");
  EXPECT_GE(points->at(1).work_saved, points->at(0).work_saved);
  EXPECT_GT(points->at(2).work_saved, points->at(1).work_saved);
}

TEST(OperatingPoints, AreOneWhereBudgetsDifferByLessThanTheirNameTells) {
  const ModelWeights model = testing::LoadPlantedModel();
  const auto paths = RandomPaths(model, 0);
  Split select(model, 6, 5), report(model, 6, 6);
  const PointSearchOptions options{.budgets = {0.01, 0.0100000001, 0.02}, .sinks = kSinks, .resamples = 100};
  const auto points = FindOperatingPoints(model, paths, options, select.stream(), report.stream(), select.work());
  ASSERT_TRUE(points.ok()) << points.status();
  ASSERT_EQ(points->size(), 2);
  EXPECT_EQ(points->front().budget, 0.01);
  EXPECT_EQ(points->back().name, "2%");
}

TEST(WholeModelGating, TakesALayerThatIsLinearForNothing) {
  const auto data = CalibrateTo(testing::LoadPlantedModel(), {.budgets = {0.0001}, .tune = false});
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->info.operating_points.size(), 5);
  const OperatingPoint& point = data->info.operating_points.front();
  EXPECT_EQ(point.name, "0.01%");
  EXPECT_LT(point.layers[0].linear_threshold, 0);  // always, and the gate is not asked
  EXPECT_LT(point.cost, 5e-4);
  // One of four layers at an eighth of its work, sinks in full.
  EXPECT_GE(point.work_saved, 0.25 * 0.875 * (kWindowTokens - kSinks) / kWindowTokens - 0.01);
  EXPECT_THAT(data->info.ingredients, ElementsAre("ladders", "sequential"));
  EXPECT_EQ(data->info.layers[0].ladder_neurons, 64);
}

TEST(WholeModelGating, SavesNothingWhereNothingIsLinear) {
  const auto data = CalibrateTo(NowhereLinear(), {.budgets = {0.0001}, .tune = false});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_LT(data->info.operating_points.front().work_saved, 0.01);
}

TEST(WholeModelGating, WithoutBudgetsIsLeftOut) {
  const auto data = CalibrateTo(testing::LoadPlantedModel(), {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->info.operating_points.empty());
  EXPECT_TRUE(data->info.ingredients.empty());
  EXPECT_FALSE(data->layers[0].ladder_weight.defined());
}

TEST(WholeModelGating, IsTheSameTwice) {
  const ModelWeights model = testing::LoadPlantedModel();
  const BudgetOptions budget{.budgets = {0.02}, .tune_steps = 3, .tune_sequences = 2};
  const auto one = CalibrateTo(model, budget), two = CalibrateTo(model, budget);
  ASSERT_TRUE(one.ok() && two.ok());
  for (size_t layer = 0; layer < one->layers.size(); ++layer) {
    EXPECT_TRUE(one->layers[layer].surrogate_weight.equal(two->layers[layer].surrogate_weight)) << layer;
    EXPECT_TRUE(one->layers[layer].gate_weight.equal(two->layers[layer].gate_weight)) << layer;
    EXPECT_TRUE(one->layers[layer].ladder_weight.equal(two->layers[layer].ladder_weight)) << layer;
  }
  for (size_t i = 0; i < one->info.operating_points.size(); ++i) {
    EXPECT_EQ(one->info.operating_points[i].layers, two->info.operating_points[i].layers);
    EXPECT_EQ(one->info.operating_points[i].cost, two->info.operating_points[i].cost);
  }
}

TEST(WholeModelGating, StopsInTheMiddleOfTuning) {
  std::atomic<bool> stop{false};
  const ProgressFn progress = [&](double, std::string_view stage) {
    if (stage.find("tuning") != stage.npos) stop = true;
  };
  const auto data = CalibrateTo(testing::LoadPlantedModel(),
                                {.budgets = {0.01}, .tune_steps = 100'000, .tune_sequences = 2}, progress, &stop);
  EXPECT_THAT(data, StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
}

TEST(WholeModelGating, NamesTheOptionItRefuses) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<BudgetOptions, std::string> cases[] = {
      {{.budgets = {0}}, "budgets"},
      {{.budgets = {0.01, nan}}, "budgets"},
      {{.budgets = {11}}, "budgets"},
      {{.budgets = {0.01}, .ladder_share = 1}, "ladder_share"},
      {{.budgets = {0.01}, .ladder_share = nan}, "ladder_share"},
      {{.budgets = {0.01}, .tune_steps = -1}, "tune_steps"},
      {{.budgets = {0.01}, .tune_sequences = 0}, "tune_sequences"},
      {{.budgets = {0.01}, .tune_work_saved = 1}, "tune_work_saved"},
  };
  for (const auto& [options, name] : cases) {
    EXPECT_THAT(CheckBudgetOptions(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
  EXPECT_TRUE(CheckBudgetOptions({}).ok());
}

TEST(Tuning, BringsTheGatedModelNearerToTheFullOneOnTextItHasNotSeen) {
  const ModelWeights model = testing::LoadPlantedModel();
  std::vector<CheapPaths> paths = RandomPaths(model, 0);
  Split train(model, 12, 8), held_out(model, 6, 9);
  double saved_before = 0, saved_after = 0;
  const double before = KlOf(model, paths, held_out.stream().ids(), &saved_before);
  const TuningOptions options{
      .steps = 40, .sequences = 2, .work_saved = saved_before, .sinks = kSinks, .learning_rate = 0.05};
  const auto steps = TuneGating(model, train.stream().ids(), options, paths, train.work());
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->size(), 40);
  const double after = KlOf(model, paths, held_out.stream().ids(), &saved_after);
  EXPECT_LT(after, 0.6 * before);
  EXPECT_GT(saved_after, 0.7 * saved_before);
}

TEST(Tuning, LeavesTheServingWeightsAlone) {
  const ModelWeights model = testing::LoadPlantedModel();
  const at::Tensor before = model.layers[1].mlp_in.weight.clone();
  std::vector<CheapPaths> paths = RandomPaths(model, 0);
  Split train(model, 2, 8);
  ASSERT_TRUE(TuneGating(model, train.stream().ids(), {.steps = 2, .sequences = 1}, paths, train.work()).ok());
  EXPECT_TRUE(model.layers[1].mlp_in.weight.equal(before));
  EXPECT_FALSE(model.layers[1].mlp_in.weight.requires_grad());
  EXPECT_FALSE(paths[1].surrogate_weight.requires_grad());
}

// Decisions fixed (every gate far on one side), the loss is smooth in the other parameters.
TEST(Tuning, FollowsTheGradientOfFiniteDifferences) {
  ModelWeights model = testing::LoadPlantedModel();
  for (const bool linear : {true, false}) {
    std::vector<CheapPaths> paths = RandomPaths(model, linear ? 60 : -60);
    for (CheapPaths& of : paths) of.ladder_gap = at::full({1}, linear ? 0.5 : 120);
    Split text(model, 1, 4);
    const at::Tensor ids = text.stream().ids();
    const at::Tensor full = PlainLayers(model, PlainEmbed(model, ids), 0, model.config.layers);
    for (const int layer : {0, 3}) {
      at::Tensor& bias = linear ? paths[layer].surrogate_bias : paths[layer].ladder_bias;
      bias = bias.detach().clone().requires_grad_(true);
      AccumulateGatedLoss(model, paths, ids, full, {.sinks = kSinks});
      const at::Tensor gradient = bias.grad().clone(), start = bias.detach().clone();
      const at::Tensor way = gradient / gradient.norm();
      const double step = 1e-2;
      const auto loss_at = [&](double length) {
        bias = (start + length * way).requires_grad_(true);
        return AccumulateGatedLoss(model, paths, ids, full, {.sinks = kSinks}).divergence;
      };
      const double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
      EXPECT_NEAR(slope, gradient.norm().item<double>(), 0.02 * slope) << layer << linear;
      bias = start;
    }
  }
}

TEST(Tuning, OpensGatesForWorkAndClosesThemForNothing) {
  const ModelWeights model = testing::LoadPlantedModel();
  std::vector<CheapPaths> paths = RandomPaths(model, 0, /*ladders=*/false);
  paths[1].gate_bias.requires_grad_(true);
  Split text(model, 1, 4);
  const at::Tensor full = PlainLayers(model, PlainEmbed(model, text.stream().ids()), 0, model.config.layers);
  AccumulateGatedLoss(model, paths, text.stream().ids(), full, {.sinks = kSinks, .work_weight = 1e6});
  EXPECT_LT(paths[1].gate_bias.grad().item<double>(), 0);  // down the loss is up with the gate
}

}  // namespace
}  // namespace gatehouse
