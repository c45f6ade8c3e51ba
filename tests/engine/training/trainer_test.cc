#include "server/engine/training/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "server/engine/training/saved_model.h"
#include "tests/engine/model/model_directory.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::_;
// A short training of a tiny model, to be stopped and taken up again at will.
class TinyTraining {
 public:
  explicit TinyTraining(TrainingSchedule schedule) {
    TrainingMethod method;
    method.schedule = schedule;
    method.steps_per_layer = 3;
    method.final_steps = 4;
    method.learning_rate = 1e-3;
    plan_ = PlanTraining(method, {1, 0});
    for (int i = 0; i < 32 * 30; ++i) tokens_.push_back((i * i * 7 + i * 29) % 127);
    text_ = {.tokens = tokens_, .window = 32, .train = {}, .fit = {0, 1, 2, 3, 4, 5}, .report = {28, 29}};
    for (int block = 0; block < 28; ++block) text_.train.push_back(block);
    options_.evaluate_every = 2;
    options_.gate_learning_rate = 0.05;
    options_.batch_sequences = 20;  // two micro-batches
    options_.checkpoint_path = folder_.File("run.safetensors");
    options_.identity = {{"test", "tiny"}};
  }

  const TrainingPlan& plan() const { return plan_; }
  TrainerOptions& options() { return options_; }
  const TemporaryFolder& folder() const { return folder_; }

  struct End {
    absl::Status status;
    std::map<std::string, at::Tensor> tensors;
    TrainingProgress progress;
  };
  // Cancelled at the given report of progress; never for 0.
  End Run(int cancel_at = 0) {
    std::atomic<bool> cancelled{false};
    int calls = 0;
    const ProgressFn progress = [&](double fraction, std::string_view) {
      EXPECT_LE(fraction, 1);
      if (++calls == cancel_at) cancelled = true;
    };
    Work work(Trainer::TotalWork(model_, plan_, text_, options_), progress, cancelled);
    Trainer trainer(model_, plan_, text_, options_, work);
    End end;
    end.status = trainer.Run();
    for (const Parameter& parameter : trainer.model().parameters()) {
      end.tensors[parameter.name] = parameter.value.detach().clone();
    }
    end.progress = trainer.progress();
    return end;
  }

 private:
  TemporaryFolder folder_;
  const ModelWeights model_ = LoadModel(FixturePath("gpt2"));
  std::vector<int32_t> tokens_;
  TrainingPlan plan_;
  TrainingText text_;
  TrainerOptions options_;
};

bool SameNumber(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void ExpectSame(const TinyTraining::End& a, const TinyTraining::End& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
  ASSERT_EQ(a.progress.curve.size(), b.progress.curve.size());
  for (size_t i = 0; i < a.progress.curve.size(); ++i) {
    const CurvePoint &x = a.progress.curve[i], &y = b.progress.curve[i];
    EXPECT_TRUE(x.step == y.step && x.stage == y.stage && x.perplexity == y.perplexity &&
                x.linear_fraction == y.linear_fraction && SameNumber(x.training_loss, y.training_loss) &&
                SameNumber(x.gradient_norm, y.gradient_norm))
        << "point " << i;
  }
  ASSERT_EQ(a.progress.fits.size(), b.progress.fits.size());
  for (size_t i = 0; i < a.progress.fits.size(); ++i) EXPECT_EQ(a.progress.fits[i].r2, b.progress.fits[i].r2);
}

TEST(Trainer, TakesTheStepsThatTransformersAndTorchTake) {
  for (const char* name : {"gpt2", "neox", "llama"}) {
    SCOPED_TRACE(name);
    const nlohmann::json fixture = ReadJson(RepositoryPath("tests/data/training/") + name + ".json");
    const ModelWeights model = LoadModel(FixturePath(name));
    std::vector<int32_t> tokens;
    for (const nlohmann::json& row : fixture["ids"]) {
      for (const nlohmann::json& id : row) tokens.push_back(id);
    }
    const int sequences = static_cast<int>(fixture["ids"].size());
    const int steps = static_cast<int>(fixture["losses"].size());
    TrainingText text{tokens, static_cast<int>(fixture["ids"][0].size()), {}, {}, {0}};
    text.train.resize(sequences);
    std::iota(text.train.begin(), text.train.end(), 0);
    const TemporaryFolder folder;
    TrainerOptions options;
    options.batch_sequences = sequences;
    options.evaluate_every = 1;
    options.weight_decay = fixture["weight_decay"];
    options.gradient_clip = fixture["clip"];
    options.checkpoint_path = folder.File("run.safetensors");
    TrainingPlan plan;
    plan.arm = "control";
    plan.steps = steps;
    plan.learning_rate = [&](int64_t) { return fixture["learning_rate"].get<double>(); };
    plan.pressure = [](int64_t) { return 0.0; };
    const ProgressFn progress;
    const std::atomic<bool> cancelled{false};
    Work work(1, progress, cancelled);
    Trainer trainer(model, plan, text, options, work);
    ASSERT_TRUE(trainer.Run().ok());
    const auto& curve = trainer.progress().curve;
    ASSERT_EQ(curve.size(), static_cast<size_t>(steps) + 1);
    for (int step = 0; step < steps; ++step) {
      EXPECT_NEAR(curve[step + 1].training_loss, fixture["losses"][step].get<double>(), 1e-5);
      EXPECT_NEAR(curve[step + 1].gradient_norm, fixture["norms"][step].get<double>(), 1e-4);
    }
    int compared = 0;
    for (const auto& [key, tensor] : CheckpointTensors(trainer.model().weights())) {
      ASSERT_TRUE(fixture["tensors"].contains(key)) << key;
      const at::Tensor flat = tensor.detach().flatten();
      const int64_t stride = std::max<int64_t>(1, flat.numel() / fixture["samples"].get<int64_t>());
      at::Tensor ours = flat.slice(0, 0, flat.numel(), stride);
      at::Tensor theirs = at::tensor(fixture["tensors"][key].get<std::vector<double>>()).to(at::kFloat);
      if (key.ends_with("attn.c_attn.bias") || key.ends_with("query_key_value.bias")) {
        // Softmax does not feel a key's bias where there is no rotary embedding: its gradient
        // is rounding, which Adam makes large.  Sign and size of such a step mean nothing.
        const at::Tensor near = (ours - theirs).abs() < 1e-5;
        EXPECT_GE(near.sum().item<int64_t>(), near.numel() * 6 / 10) << key;
      } else {
        EXPECT_LT(MaxDifference(ours, theirs), 1e-5) << key;
      }
      ++compared;
    }
    EXPECT_EQ(compared, static_cast<int>(fixture["tensors"].size()));
  }
}

TEST(Trainer, EndsBitForBitTheSameHoweverOftenItIsStopped) {
  for (const TrainingSchedule schedule :
       {TrainingSchedule::kProgressive, TrainingSchedule::kTwoPhase, TrainingSchedule::kRouting}) {
    TinyTraining whole(schedule), pieces(schedule);
    SCOPED_TRACE(whole.plan().arm);
    const TinyTraining::End expected = whole.Run();
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    int stops = 0;
    TinyTraining::End end;
    // The first stop comes before anything is done; later ones leave longer stretches, since
    // a stage's change starts anew after a stop in it.
    for (; stops < 100; ++stops) {
      end = pieces.Run(stops == 0 ? 1 : 15 + stops % 5);
      if (end.status.ok()) break;
      ASSERT_THAT(end.status, StatusIs(absl::StatusCode::kCancelled, _));
    }
    EXPECT_GT(stops, 2);
    ASSERT_TRUE(end.status.ok());
    ExpectSame(end, expected);
  }
}

TEST(Trainer, GoesOnFromACheckpointOfItsOwnMaking) {
  TinyTraining training(TrainingSchedule::kProgressive);
  training.options().checkpoint_seconds = 0;  // after every piece of work
  const TinyTraining::End first = training.Run();
  ASSERT_TRUE(first.status.ok());
  // Nothing is left to do.
  const TinyTraining::End again = training.Run();
  ASSERT_TRUE(again.status.ok());
  ExpectSame(again, first);
}

TEST(Trainer, MeasuresBeforeAndAfterEachChange) {
  TinyTraining training(TrainingSchedule::kProgressive);
  const TinyTraining::End end = training.Run();
  std::vector<std::pair<int64_t, int>> points;
  for (const CurvePoint& point : end.progress.curve) points.emplace_back(point.step, point.stage);
  const std::vector<std::pair<int64_t, int>> expected = {{0, 0}, {0, 1}, {2, 1}, {3, 1}, {3, 2},
                                                         {4, 2}, {6, 2}, {8, 3}, {10, 3}};
  EXPECT_EQ(points, expected);
  // 28 of 32 positions are no sinks, and 0, 1, then 2 of 2 layers are linear.
  EXPECT_EQ(end.progress.curve[0].linear_fraction, 0);
  EXPECT_NEAR(end.progress.curve[1].linear_fraction, 0.5 * 28 / 32, 1e-12);
  EXPECT_NEAR(end.progress.curve[4].linear_fraction, 28.0 / 32, 1e-12);
}

TEST(Trainer, TrainsNothingButGatesInTheSecondPhase) {
  TinyTraining training(TrainingSchedule::kTwoPhase);
  const TinyTraining::End end = training.Run();
  ASSERT_TRUE(end.status.ok());
  const ModelWeights model = LoadModel(FixturePath("gpt2"));
  // Replaced in the first phase, frozen in the second: as they came.
  EXPECT_TRUE(at::equal(end.tensors.at("layers.0.mlp_in.weight"), model.layers[0].mlp_in.weight));
  EXPECT_FALSE(at::equal(end.tensors.at("layers.0.qkv.weight"), model.layers[0].qkv.weight));
  EXPECT_GT(end.tensors.at("layers.0.gate.weight").abs().max().item<double>(), 0.01);
}

TEST(Trainer, LearnsFasterThanNothing) {
  TinyTraining training(TrainingSchedule::kRouting);
  const TinyTraining::End end = training.Run();
  EXPECT_LT(end.progress.curve.back().training_loss, end.progress.curve[2].training_loss);
}

}  // namespace
}  // namespace gatehouse::testing
