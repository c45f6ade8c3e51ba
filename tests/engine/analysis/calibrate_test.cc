#include "server/engine/analysis/calibrate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "server/engine/analysis/corpus_splits.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/training/plain_forward.h"
#include "tests/support/planted_model.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PlantedCorpus;
using testing::PlantedOptions;
using testing::PlantedTruth;
using testing::StatusIs;

constexpr int64_t kCorpusTokens = 9'000;

struct Planted {
  ModelWeights model;
  PlantedTruth truth;
};

Planted Load(const PlantedOptions& options) {
  const std::string directory = ::testing::TempDir() + "/planted-" +
                                ::testing::UnitTest::GetInstance()->current_test_info()->name() + "-" +
                                std::to_string(options.consensus) + (options.noise ? "n" : "");
  auto truth = WritePlantedModel(directory, options, 1000);
  EXPECT_TRUE(truth.ok()) << truth.status();
  auto model = LoadModelWeights(directory, at::kFloat, at::kCPU);
  EXPECT_TRUE(model.ok()) << model.status();
  std::filesystem::remove_all(directory);
  return {*std::move(model), *std::move(truth)};
}

template <typename T>
CalibrateOptions With(T CalibrateOptions::*member, T value) {
  CalibrateOptions options;
  options.*member = value;
  return options;
}

absl::StatusOr<CalibrationData> CalibrateOn(const ModelWeights& model, const CalibrateOptions& options = {},
                                            int64_t tokens = kCorpusTokens) {
  const std::atomic<bool> cancelled{false};
  return Calibrate(model, options, PlantedCorpus(tokens, 1), nullptr, cancelled);
}

std::vector<int> Sorted(const std::vector<NeuronFinding>& findings) {
  std::vector<int> neurons;
  for (const NeuronFinding& finding : findings) neurons.push_back(finding.neuron);
  std::sort(neurons.begin(), neurons.end());
  return neurons;
}

// Planted neurons, their number and whether there is anything else in the model.
class PlantedNeurons : public ::testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(PlantedNeurons, AreFoundExactlyAndAboveBothNulls) {
  const auto [model, truth] = Load({.consensus = GetParam().first, .noise = GetParam().second});
  const auto data = CalibrateOn(model);
  ASSERT_TRUE(data.ok()) << data.status();
  const LayerCalibration& layer = data->info.layers[truth.layer];
  EXPECT_EQ(Sorted(layer.consensus), truth.consensus);
  EXPECT_EQ(Sorted(layer.exception), truth.exception);
  // With 7, the 8 neurons of the patterns are the planted ones: the exception neuron leads.
  if (GetParam().first == 7) {
    EXPECT_EQ(Sorted(layer.gateway), truth.exception);
  }
  EXPECT_LT(layer.consensus_null, 0.2);
  EXPECT_LT(layer.exception_null, 0.2);
  if (GetParam().first > 1) {
    EXPECT_GT(layer.consensus.size(), layer.consensus_random);
  }
  EXPECT_NEAR(layer.consensus.front().base_rate, 0.96, 0.02);
  EXPECT_LT(layer.consensus.front().rate_difference, -0.6);
  for (int other : {0, 1, 2}) {
    EXPECT_THAT(data->info.layers[other].consensus, IsEmpty()) << other;
    EXPECT_THAT(data->info.layers[other].exception, IsEmpty()) << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Calibrate, PlantedNeurons,
                         ::testing::Values(std::pair(1, true), std::pair(2, true), std::pair(7, true),
                                           std::pair(1, false), std::pair(2, false), std::pair(7, false)));

struct Totals {
  double found = 0, shuffled = 0, random = 0;
  void Add(size_t count, double null, double drawn_anew) {
    found += static_cast<double>(count);
    shuffled += null;
    random += drawn_anew;
  }
  // Two counts of one rate differ by more than this once in a thousand times.
  double bound() const { return std::max(shuffled, random) + 3 * std::sqrt(2 * random + 1); }
};

// In a model whose every MLP was drawn anew the rules name as many neurons as the printed null
// of such weights says, but for chance.
TEST(Calibrate, FindsNothingAboveItsNullsInRandomWeights) {
  Totals consensus, exception, gateway;
  for (const uint64_t seed : {1, 2}) {
    auto [model, truth] = Load({.random_weights = true, .seed = seed});
    for (int layer = 0; layer < model.config.layers; ++layer) model = WithRandomMlp(model, layer, 100 * seed + layer);
    const auto data = CalibrateOn(model, With(&CalibrateOptions::seed, seed));
    ASSERT_TRUE(data.ok()) << data.status();
    for (const LayerCalibration& layer : data->info.layers) {
      consensus.Add(layer.consensus.size(), layer.consensus_null, layer.consensus_random);
      exception.Add(layer.exception.size(), layer.exception_null, layer.exception_random);
      gateway.Add(layer.gateway.size(), layer.gateway_null, layer.gateway_random);
    }
  }
  EXPECT_LE(consensus.found, consensus.bound());
  EXPECT_LE(exception.found, exception.bound());
  EXPECT_LE(gateway.found, gateway.bound());
}

TEST(Calibrate, AnMlpThatIsLinearCostsNothing) {
  const auto [model, truth] = Load({});
  const auto data = CalibrateOn(model);
  ASSERT_TRUE(data.ok()) << data.status();
  const LayerCalibration& layer = data->info.layers[truth.linear_layer];
  EXPECT_NEAR(layer.surrogate_r2, 1, 1e-6);
  EXPECT_NEAR(layer.linear_cost, 0, 1e-5);
  EXPECT_NEAR(layer.linear_cost_with_sinks, 0, 1e-5);
  EXPECT_NEAR(layer.gate_cost, 0, 1e-5);
  EXPECT_TRUE(layer.gateable);
  EXPECT_LT(layer.p95, 1e-3);
  // What the file will hold is that MLP.
  const std::vector<int32_t> tokens = PlantedCorpus(100, 2);
  const at::Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())).unsqueeze(0);
  at::Tensor x;
  PlainLayers(model, PlainEmbed(model, ids), truth.linear_layer, truth.linear_layer + 1,
              [&](int, const at::Tensor& read) { return x = read; });
  const CalibrationData::Layer& tensors = data->layers[truth.linear_layer];
  const at::Tensor predicted = at::linear(x, tensors.surrogate_weight, tensors.surrogate_bias);
  EXPECT_LT((predicted - PlainMlp(model, truth.linear_layer, x)).abs().max().item<float>(), 1e-3);
}

TEST(Calibrate, MeasuresTheMeanActivationsOfTheGateSplitWithoutSinks) {
  const auto [model, truth] = Load({});
  const auto data = CalibrateOn(model);
  ASSERT_TRUE(data.ok()) << data.status();
  const auto splits = PlanSplits({}, kCorpusTokens, model.config);
  ASSERT_TRUE(splits.ok()) << splits.status();
  const std::vector<int32_t> corpus = PlantedCorpus(kCorpusTokens, 1);
  std::vector<at::Tensor> neurons(model.config.layers);  // sums over tokens
  int64_t tokens = 0;
  for (const int64_t block : splits->gate) {
    const auto first = corpus.begin() + block * splits->window;
    const at::Tensor ids = at::tensor(std::vector<int64_t>(first, first + splits->window)).unsqueeze(0);
    PlainForward(model, ids, [&](int layer, const at::Tensor& x) {
      const at::Tensor all = PlainNeurons(model, layer, x);
      const at::Tensor sum = all[0].narrow(0, 4, splits->window - 4).to(at::kDouble).sum(0);
      neurons[layer] = neurons[layer].defined() ? neurons[layer] + sum : sum;
      return PlainDown(model, layer, all);
    });
    tokens += splits->window - 4;
  }
  for (int layer = 0; layer < model.config.layers; ++layer) {
    EXPECT_TRUE(data->info.layers[layer].neuron_means);
    const at::Tensor difference = data->layers[layer].neuron_mean - neurons[layer] / static_cast<double>(tokens);
    EXPECT_LE(difference.abs().max().item<double>(), 1e-4) << "layer " << layer;
  }
}

TEST(Calibrate, AHugeFirstPositionWrecksTheFitUnlessSinksAreLeftOut) {
  const auto [model, truth] = Load({.sink = true});
  const auto data = CalibrateOn(model);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_LT(data->info.layers[1].linear_cost, 0.1);
  EXPECT_GT(data->info.layers[1].linear_cost_with_sinks, 1);
  EXPECT_TRUE(data->info.layers[1].gateable);
  EXPECT_EQ(Sorted(data->info.layers[truth.layer].consensus), truth.consensus);

  // Without positions left out, the norm alone keeps them from the fit, but not from being
  // replaced.
  const auto by_norm = CalibrateOn(model, With(&CalibrateOptions::sink_positions, 0));
  ASSERT_TRUE(by_norm.ok()) << by_norm.status();
  EXPECT_GT(by_norm->info.layers[1].surrogate_r2, 0.5);
}

TEST(Calibrate, IsTheSameTwiceAndAnotherWithAnotherSeed) {
  const auto [model, truth] = Load({});
  const auto first = CalibrateOn(model, With<uint64_t>(&CalibrateOptions::seed, 5), 6000),
             again = CalibrateOn(model, With<uint64_t>(&CalibrateOptions::seed, 5), 6000);
  const auto other = CalibrateOn(model, With<uint64_t>(&CalibrateOptions::seed, 6), 6000);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_TRUE(at::equal(first->layers[1].surrogate_weight, again->layers[1].surrogate_weight));
  EXPECT_TRUE(at::equal(first->layers[1].gate_weight, again->layers[1].gate_weight));
  EXPECT_EQ(first->info.layers[2].linear_cost, again->info.layers[2].linear_cost);
  EXPECT_FALSE(at::equal(first->layers[1].surrogate_weight, other->layers[1].surrogate_weight));
}

TEST(Calibrate, SaysHowItWasDone) {
  const auto [model, truth] = Load({});
  CalibrateOptions options;
  options.name = "n";
  options.corpus = "planted";
  options.corpus_sha256 = "abc";
  options.seed = 9;
  const auto data = CalibrateOn(model, options, 6000);
  ASSERT_TRUE(data.ok());
  const CalibrationInfo& info = data->info;
  EXPECT_EQ(info.name, "n");
  EXPECT_EQ(info.corpus, "planted");
  EXPECT_EQ(info.corpus_sha256, "abc");
  EXPECT_EQ(info.seed, 9u);
  EXPECT_EQ(info.window_tokens, 128);
  EXPECT_EQ(info.sink_positions, 4);
  EXPECT_EQ(info.dtype, "float32");
  EXPECT_EQ(info.model_fingerprint, model.fingerprint);
  EXPECT_EQ(info.fit_tokens + info.gate_tokens + info.select_tokens + info.report_tokens, 6000 / 128 * 128);
}

TEST(Calibrate, ReportsProgressFromNothingToDoneInOrder) {
  const auto [model, truth] = Load({});
  std::vector<double> fractions;
  std::vector<std::string> stages;
  const ProgressFn progress = [&](double fraction, std::string_view stage) {
    fractions.push_back(fraction);
    stages.emplace_back(stage);
  };
  const std::atomic<bool> cancelled{false};
  ASSERT_TRUE(Calibrate(model, {}, PlantedCorpus(6000, 1), progress, cancelled).ok());
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.front(), 0);
  EXPECT_EQ(fractions.back(), 1);
  // The last step before the end is about the end: the total was estimated right.
  EXPECT_GT(fractions[fractions.size() - 2], 0.95);
  EXPECT_LT(fractions[fractions.size() - 2], 1);
  EXPECT_THAT(stages, ::testing::Contains("costs: layer 3 of 4"));
}

TEST(Calibrate, StopsSoonAfterItIsCancelled) {
  const auto [model, truth] = Load({});
  std::atomic<bool> cancelled{false};
  int calls = 0, calls_after = 0;
  const ProgressFn progress = [&](double, std::string_view) {
    if (cancelled) ++calls_after;
    if (++calls == 40) cancelled = true;
  };
  EXPECT_THAT(Calibrate(model, {}, PlantedCorpus(6000, 1), progress, cancelled),
              StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_EQ(calls, 40);
  EXPECT_EQ(calls_after, 0);
}

TEST(Calibrate, RefusesWhatItCannotCalibrateOn) {
  const auto [model, truth] = Load({});
  const auto refuses = [&](const CalibrateOptions& options, int64_t tokens, const char* what) {
    EXPECT_THAT(CalibrateOn(model, options, tokens), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refuses({}, 600, "the corpus has 600 tokens");
  refuses({}, 0, "at least 640");
  refuses(With(&CalibrateOptions::sink_positions, -1), 6000, "sink_positions");
  refuses(With<double>(&CalibrateOptions::ridge, 0), 6000, "ridge");
  refuses(With<double>(&CalibrateOptions::ridge, std::nan("")), 6000, "ridge");
  refuses(With<double>(&CalibrateOptions::gateable_cost_limit, std::nan("")), 6000, "gateable_cost_limit");
  refuses(With(&CalibrateOptions::max_consensus, 0), 6000, "max_consensus");
  refuses(With(&CalibrateOptions::max_consensus, 65), 6000, "max_consensus");

  const std::atomic<bool> cancelled{false};
  std::vector<int32_t> tokens = PlantedCorpus(6000, 1);
  tokens[5999] = 1500;
  EXPECT_THAT(Calibrate(model, {}, tokens, nullptr, cancelled),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token 5999 of the corpus is 1500")));
}

TEST(Calibrate, ThatShipsWithTheModelsLoadsForThem) {
  const std::string models = std::string(std::getenv("GATEHOUSE_SOURCE_DIR")) + "/models/";
  for (const char* name : {"novella-gpt2-7m", "novella-neox-4m"}) {
    const auto model = LoadModelWeights(models + name, at::kFloat, at::kCPU);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto data = ReadCalibrationFile(models + name + "/calibrations/default.safetensors", *model);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->info.name, "default");
    EXPECT_GT(std::count_if(data->info.layers.begin(), data->info.layers.end(), [](auto& l) { return l.gateable; }), 3);
  }
}

TEST(Calibrate, FailsWhereTheModelsNumbersAreNotFinite) {
  auto [model, truth] = Load({});
  model.layers[1].mlp_out.bias = at::full({64}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(CalibrateOn(model, {}, 6000), StatusIs(absl::StatusCode::kInternal, HasSubstr("not finite")));
}

}  // namespace
}  // namespace gatehouse
