#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "server/engine/analysis/corpus_splits.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/engine.h"
#include "server/engine/experiment.h"
#include "tests/engine/model/model_directory.h"
#include "tests/support/planted_model.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// The experiment of methods A.6 on a model whose layer 0 is exactly linear.
class LinearizedTraining : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    planted_ = new TemporaryFolder;
    ASSERT_TRUE(WritePlantedModel(planted_->path(), {}, 8'000).ok());
    model_ = new ModelWeights(LoadModel(planted_->path()));
  }
  static void TearDownTestSuite() {
    delete model_;
    delete planted_;
  }

  LinearizedTraining() {
    spec_.options.window_tokens = 64;
    spec_.options.fit_tokens = 2'000;
    spec_.options.gate_tokens = spec_.options.select_tokens = 64;
    spec_.options.report_tokens = 1'000;
    spec_.options.bootstrap_resamples = 200;
    method_.order = {0};
    method_.steps_per_layer = 4;
    method_.final_steps = 2;
    method_.evaluate_every = 3;
    corpora_ = {{"planted", "sha", PlantedCorpus(8'000, 1)}};
  }

  absl::StatusOr<ExperimentResult> Run(int cancel_at = 0) {
    spec_.method = method_;
    std::atomic<bool> cancelled{false};
    int calls = 0;
    const ProgressFn progress = [&](double, std::string_view) {
      if (++calls == cancel_at) cancelled = true;
    };
    return RunExperiment(*model_, spec_, corpora_, folder_.path(), progress, cancelled);
  }

  static TemporaryFolder* planted_;
  static ModelWeights* model_;
  ExperimentSpec spec_;
  TrainingMethod method_;
  std::vector<Corpus> corpora_;
  TemporaryFolder folder_;
};
TemporaryFolder* LinearizedTraining::planted_ = nullptr;
ModelWeights* LinearizedTraining::model_ = nullptr;

template <typename T>
const std::vector<T>& Cells(const Report& report, const std::string& table, const std::string& column) {
  for (const ReportTable& candidate : report.tables) {
    if (candidate.name != table) continue;
    for (const ReportColumn& cells : candidate.columns) {
      if (cells.name == column) return std::get<std::vector<T>>(cells.cells);
    }
  }
  ADD_FAILURE() << "no column " << column << " in a table " << table;
  static const std::vector<T> none(100);
  return none;
}

double Final(const Report& report, const std::string& arm, const std::string& column) {
  const auto& arms = Cells<std::string>(report, "final", "arm");
  for (size_t i = 0; i < arms.size(); ++i) {
    if (arms[i] == arm) return Cells<double>(report, "final", column)[i];
  }
  ADD_FAILURE() << "no arm " << arm;
  return std::numeric_limits<double>::quiet_NaN();
}

TEST_F(LinearizedTraining, CostsNothingWhereTheLayerIsLinear) {
  const absl::StatusOr<ExperimentResult> result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  const Report& report = result->report;
  EXPECT_NEAR(Cells<double>(report, "layers", "surrogate_r2")[0], 1, 1e-6);
  const double before = Cells<double>(report, "stages", "perplexity_before")[0];
  EXPECT_NEAR(Cells<double>(report, "stages", "perplexity_changed")[0] / before, 1, 1e-4);
  // Fine-tuning hurts neither.
  EXPECT_LT(Final(report, "progressive", "change"), 1e-3);
  EXPECT_LT(Final(report, "control", "change"), 1e-3);
  EXPECT_EQ(Final(report, "untouched", "change"), 0);
  // One of four layers, 60 of 64 positions; the surrogate costs 64² of 2 · 64 · 256.
  EXPECT_NEAR(Final(report, "progressive", "linear_fraction"), 60.0 / 64 / 4, 1e-9);
  EXPECT_NEAR(Final(report, "progressive", "work_saved"), 60.0 / 64 / 4 * (1 - 1.0 / 8), 1e-9);
  EXPECT_EQ(Final(report, "control", "work_saved"), 0);
}

TEST_F(LinearizedTraining, ShowsTheControlAtEveryStepOfTheRun) {
  method_.order = {3, 0};
  const absl::StatusOr<ExperimentResult> result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  const Report& report = result->report;
  EXPECT_EQ(report.kind, "progressive");
  std::set<double> run, control;
  const auto& arms = Cells<std::string>(report, "curve", "arm");
  for (size_t i = 0; i < arms.size(); ++i) {
    (arms[i] == "control" ? control : run).insert(Cells<double>(report, "curve", "step")[i]);
  }
  EXPECT_EQ(run, (std::set<double>{0, 3, 4, 6, 8, 9, 10}));
  EXPECT_EQ(control, run);
  EXPECT_EQ(Cells<std::string>(report, "stages", "stage"),
            (std::vector<std::string>{"layer 3 linear", "layer 0 linear", "final stretch"}));
  // Layer 3 is far from linear: replacing it shows.
  EXPECT_LT(Cells<double>(report, "layers", "surrogate_r2")[3], 0.99);
  EXPECT_GT(std::abs(Cells<double>(report, "stages", "perplexity_changed")[0] -
                     Cells<double>(report, "stages", "perplexity_before")[0]),
            0.1);
  for (const ReportTable& table : report.tables) {
    std::set<size_t> rows;
    for (const ReportColumn& column : table.columns) {
      rows.insert(std::visit([](const auto& cells) { return cells.size(); }, column.cells));
    }
    EXPECT_EQ(rows.size(), 1u) << table.name;
  }
  EXPECT_THAT(report.summary, HasSubstr("Run against control"));
  EXPECT_FALSE(result->arrays.empty());
}

TEST_F(LinearizedTraining, NeverTouchesTheWeightsThatServe) {
  std::vector<at::Tensor> before;
  for (const LayerWeights& layer : model_->layers) before.push_back(layer.mlp_in.weight.clone());
  const at::Tensor embedding = model_->token_embedding.clone();
  method_.learning_rate = 1e-2;
  ASSERT_TRUE(Run().ok());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], model_->layers[i].mlp_in.weight));
  EXPECT_TRUE(at::equal(embedding, model_->token_embedding));
  EXPECT_FALSE(model_->token_embedding.requires_grad());
}

TEST_F(LinearizedTraining, KeepsWhatItHasWhenCancelledAndGoesOnFromIt) {
  method_.order = {1};
  const absl::StatusOr<ExperimentResult> whole = Run();
  ASSERT_TRUE(whole.ok());
  EXPECT_FALSE(fs::exists(folder_.File("run.safetensors")));  // of no use any more
  absl::StatusOr<ExperimentResult> resumed = absl::UnknownError("");
  int stops = 0;
  for (; stops < 100; ++stops) {
    resumed = Run(/*cancel_at=*/14);
    if (resumed.ok()) break;
    ASSERT_THAT(resumed.status(), StatusIs(absl::StatusCode::kCancelled, _));
    EXPECT_TRUE(fs::exists(folder_.File("run.safetensors")));
  }
  EXPECT_GT(stops, 1);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(Cells<double>(resumed->report, "curve", "perplexity"), Cells<double>(whole->report, "curve", "perplexity"));
  EXPECT_EQ(Cells<double>(resumed->report, "final", "change"), Cells<double>(whole->report, "final", "change"));
}

TEST_F(LinearizedTraining, RefusesTheCheckpointOfOtherOptions) {
  ASSERT_THAT(Run(/*cancel_at=*/14).status(), StatusIs(absl::StatusCode::kCancelled, _));
  method_.batch_sequences = 3;
  const absl::Status status = Run().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_THAT(std::string(status.message()), HasSubstr("batch_sequences is 4 there, here 3"));
}

TEST_F(LinearizedTraining, OpensTheGateOfALinearLayerInTwoPhases) {
  method_.schedule = TrainingSchedule::kTwoPhase;
  method_.order = {0, 1};
  method_.final_steps = 20;
  method_.gate_learning_rate = 0.05;
  const absl::StatusOr<ExperimentResult> result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  const Report& report = result->report;
  EXPECT_EQ(report.kind, "two_phase");
  EXPECT_EQ(Cells<std::string>(report, "layers", "mlp"), (std::vector<std::string>{"gated", "gated", "full", "full"}));
  EXPECT_GT(Cells<double>(report, "layers", "linear_fraction")[0], 0.9);
  EXPECT_EQ(Cells<double>(report, "layers", "linear_fraction")[2], 0);
  EXPECT_TRUE(std::isfinite(Final(report, "two-phase, soft gates", "perplexity")));
  EXPECT_LT(Final(report, "two-phase", "change"), 0.02);
}

TEST_F(LinearizedTraining, OpensGatesUnderPressureAlone) {
  method_.schedule = TrainingSchedule::kRouting;
  method_.order = {1};
  method_.steps_per_layer = 15;
  method_.gate_learning_rate = 0.2;
  for (const double pressure : {0.0, 100.0}) {
    method_.gate_pressure = pressure;
    const absl::StatusOr<ExperimentResult> result = Run();
    ASSERT_TRUE(result.ok()) << result.status();
    const double linear = Cells<double>(result->report, "layers", "linear_fraction")[1];
    if (pressure == 0) {
      EXPECT_LT(linear, 0.9);
    } else {
      EXPECT_EQ(linear, 60.0 / 64);
    }
  }
}

// Cross-entropies of one block at the operating point of a saved model, as it is served.
std::vector<float> ServedCrossEntropy(const std::string& directory, std::span<const int32_t> block) {
  const std::unique_ptr<Engine> engine = LoadEngine(directory, {.device = "cpu", .kv_bytes = 1 << 24}).value();
  GatingRequest request;
  request.mode = GatingMode::kGated;
  request.operating_point = "trained";
  const RoutingPolicy policy =
      RoutingPolicy::Create(request, engine->info(),
                            engine->LoadCalibration(directory + "/calibrations/default.safetensors").value())
          .value();
  std::vector<int32_t> targets(block.begin() + 1, block.end());
  targets.push_back(-1);
  Row row;
  row.sequence = engine->Open(static_cast<int>(block.size())).value();
  row.tokens = block;
  row.policy = &policy;
  row.targets = targets;
  const std::vector<RowResult> results = engine->Step({&row, 1}).value();
  std::vector<float> cross_entropy;
  for (size_t i = 0; i + 1 < block.size(); ++i) cross_entropy.push_back(-results[0].target_logprobs[i]);
  return cross_entropy;
}

TEST_F(LinearizedTraining, SavesAModelThatServesAsItWasTrained) {
  method_.save_model = true;
  method_.order = {3, 1};
  CalibrateOptions sizes;
  sizes.window_tokens = spec_.options.window_tokens;
  sizes.fit_tokens = spec_.options.fit_tokens;
  sizes.gate_tokens = spec_.options.gate_tokens;
  sizes.select_tokens = spec_.options.select_tokens;
  sizes.report_tokens = spec_.options.report_tokens;
  const int64_t first = PlanSplits(sizes, 8'000, model_->config).value().report.front();
  const std::span<const int32_t> block(corpora_[0].tokens.data() + first * 64, 64);
  for (const TrainingSchedule schedule : {TrainingSchedule::kProgressive, TrainingSchedule::kTwoPhase}) {
    method_.schedule = schedule;
    method_.final_steps = 6;
    method_.gate_learning_rate = 0.1;
    const absl::StatusOr<ExperimentResult> result = Run();
    ASSERT_TRUE(result.ok()) << result.status();
    const ReportArray& trained = result->arrays.back();
    const std::string name = schedule == TrainingSchedule::kProgressive ? "progressive" : "two-phase";
    ASSERT_EQ(trained.name,
              schedule == TrainingSchedule::kProgressive ? "cross_entropy.progressive" : "cross_entropy.two_phase");
    EXPECT_GT(Final(result->report, name, "linear_fraction"), 0.05);
    const std::vector<float> served = ServedCrossEntropy(folder_.File("model"), block);
    for (size_t i = 0; i < served.size(); ++i) {
      ASSERT_NEAR(served[i], std::get<std::vector<float>>(trained.values)[i], 1e-3) << name << ", token " << i;
    }
    EXPECT_TRUE(fs::exists(folder_.File("model/tokenizer.json")));
    EXPECT_NE(LoadModel(folder_.File("model")).fingerprint, model_->fingerprint);
  }
}

TEST_F(LinearizedTraining, MeasuresEveryFurtherCorpus) {
  corpora_.push_back({"other", "sha2", PlantedCorpus(5'000, 2)});
  const absl::StatusOr<ExperimentResult> result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  const auto& corpora = Cells<std::string>(result->report, "final", "corpus");
  EXPECT_EQ(std::count(corpora.begin(), corpora.end(), "planted"), 3);
  EXPECT_EQ(std::count(corpora.begin(), corpora.end(), "other"), 3);
}

TEST_F(LinearizedTraining, RefusesAModelThatDoesNotFit) {
  ModelWeights enormous = *model_;
  enormous.parameters = int64_t{1} << 50;
  spec_.method = method_;
  const absl::Status status = RunExperiment(enormous, spec_, corpora_, folder_.path(), nullptr, false).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("MiB are free")));
}

TEST_F(LinearizedTraining, NamesWhatIsOutOfRange) {
  const auto expect = [&](const std::string& what) {
    const absl::Status status = Run().status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, _));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    method_ = {};
  };
  method_.order = {4};
  expect("order is 4, outside [0, 4)");
  method_.order = {1, 1};
  expect("twice");
  method_.steps_per_layer = 0;
  expect("steps_per_layer is 0");
  method_.learning_rate = std::numeric_limits<double>::quiet_NaN();
  expect("learning_rate is nan");
  method_.gradient_clip = 0;
  expect("gradient_clip is 0");
  method_.schedule = TrainingSchedule::kTwoPhase;
  method_.final_steps = 0;
  expect("final_steps is 0");
  spec_.options.layers = {1, 2};
  method_.order = {3};
  expect("not among layers");
}

}  // namespace
}  // namespace gatehouse::testing
