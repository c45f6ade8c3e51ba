#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/clock.h"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/work.h"
#include "server/engine/torch_boundary.h"
#include "server/engine/training/saved_model.h"
#include "server/engine/training/schedules.h"
#include "server/engine/training/trainer.h"
#include "server/engine/training/training_report.h"

// The experiment of methods A.6: a schedule and its control, side by side.

namespace gatehouse {
namespace {

namespace fs = std::filesystem;
using Decision = TrainableModel::Decision;

absl::Status Outside(std::string_view name, auto value, std::string_view range) {
  return absl::InvalidArgumentError(StrCat(name, " is ", value, ", outside ", range));
}

absl::Status CheckMethod(const TrainingMethod& method) {
  const bool two_phase = method.schedule == TrainingSchedule::kTwoPhase;
  if (method.steps_per_layer < 1 || method.steps_per_layer > 1'000'000) {
    return Outside("steps_per_layer", method.steps_per_layer, "[1, 1000000]");
  }
  if (method.final_steps < (two_phase ? 1 : 0) || method.final_steps > 1'000'000) {
    return Outside("final_steps", method.final_steps, two_phase ? "[1, 1000000]" : "[0, 1000000]");
  }
  if (method.batch_sequences < 1 || method.batch_sequences > 4096) {
    return Outside("batch_sequences", method.batch_sequences, "[1, 4096]");
  }
  if (method.evaluate_every < 1) return Outside("evaluate_every", method.evaluate_every, "[1, ∞)");
  if (!(method.learning_rate >= 0 && method.learning_rate <= 1)) {
    return Outside("learning_rate", method.learning_rate, "[0, 1]");
  }
  if (!(method.gate_learning_rate > 0 && method.gate_learning_rate <= 1)) {
    return Outside("gate_learning_rate", method.gate_learning_rate, "(0, 1]");
  }
  if (!(method.weight_decay >= 0 && method.weight_decay <= 1)) {
    return Outside("weight_decay", method.weight_decay, "[0, 1]");
  }
  if (!(method.gradient_clip > 0 && method.gradient_clip <= 1e6)) {
    return Outside("gradient_clip", method.gradient_clip, "(0, 1e6]");
  }
  if (!(method.gate_pressure >= 0 && method.gate_pressure <= 1e3)) {
    return Outside("gate_pressure", method.gate_pressure, "[0, 1e3]");
  }
  return absl::OkStatus();
}

// The layers to replace: those that were named, or the middle of those that may be.
absl::StatusOr<std::vector<int>> OrderOf(const ExperimentContext& context, const TrainingMethod& method) {
  const std::vector<int> layers = ChosenLayers(context);
  if (method.order.empty()) return DefaultOrder(layers);
  std::set<int> seen;
  for (const int layer : method.order) {
    if (layer < 0 || layer >= context.model.config.layers) {
      return Outside("order", layer, StrCat("[0, ", context.model.config.layers, ")"));
    }
    if (!std::binary_search(layers.begin(), layers.end(), layer)) {
      return absl::InvalidArgumentError(StrCat("order names layer ", layer, ", which is not among layers"));
    }
    if (!seen.insert(layer).second) return absl::InvalidArgumentError(StrCat("order names layer ", layer, " twice"));
  }
  return method.order;
}

// What a saved model is described by must be there before the training, not only after.
absl::Status CheckSource(const std::string& directory) {
  if (directory.empty()) return absl::FailedPreconditionError("save_model: the model was not loaded from a directory");
  return Annotate(ReadFile(directory + "/config.json").status(), "save_model");
}

// A training that the system would end for want of memory would take the server with it.
absl::Status CheckMemory(const ModelWeights& model, int window) {
  const std::optional<int64_t> available = AvailableMemory();
  if (!model.token_embedding.is_cpu() || !available) return absl::OkStatus();
  constexpr double kMebibyte = 1 << 20;
  const double needed = Trainer::MemoryBytes(model, window);
  if (needed <= static_cast<double>(*available)) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(
                        StrCat("training this model takes about ", std::ceil(needed / kMebibyte), " MiB of memory; ",
                               std::floor(static_cast<double>(*available) / kMebibyte), " MiB are free")),
                    reason::kOutOfMemory);
}

// The report split is held out; everything else of the corpus is there to be trained on.
TrainingText TextOf(const CorpusPlan& plan) {
  const CorpusSplits& splits = plan.splits;
  TrainingText text{plan.corpus->tokens, splits.window, {}, splits.fit, splits.report};
  const int64_t blocks = static_cast<int64_t>(text.tokens.size()) / splits.window;
  for (int64_t block = 0; block < blocks; ++block) {
    if (!std::binary_search(splits.report.begin(), splits.report.end(), block)) text.train.push_back(block);
  }
  return text;
}

TrainingIdentity IdentityOf(const ExperimentContext& context, const TrainingMethod& method, const CorpusPlan& corpus,
                            const TrainingPlan& plan, const std::vector<int>& order) {
  const ExperimentOptions& options = context.options;
  const CorpusSplits& splits = corpus.splits;
  const auto tokens = [&](const std::vector<int64_t>& blocks) { return StrCat(blocks.size() * splits.window); };
  return {{"arm", plan.arm},
          {"model", context.model.fingerprint},
          {"dtype", StrCat(c10::toString(context.model.token_embedding.scalar_type()))},
          {"corpus", StrCat(corpus.corpus->sha256, " of ", corpus.corpus->tokens.size(), " tokens")},
          {"schedule", ExperimentKind(method)},
          {"order", absl::StrJoin(order, ",")},
          {"steps_per_layer", StrCat(method.steps_per_layer)},
          {"final_steps", StrCat(method.final_steps)},
          {"batch_sequences", StrCat(method.batch_sequences)},
          {"learning_rate", StrCat(BaseLearningRate(method))},
          {"weight_decay", StrCat(method.weight_decay)},
          {"gradient_clip", StrCat(method.gradient_clip)},
          {"gate_learning_rate", StrCat(method.gate_learning_rate)},
          {"gate_pressure", StrCat(method.gate_pressure)},
          {"evaluate_every", StrCat(method.evaluate_every)},
          {"window_tokens", StrCat(splits.window)},
          {"fit_tokens", tokens(splits.fit)},
          {"gate_tokens", tokens(splits.gate)},
          {"select_tokens", tokens(splits.select)},
          {"report_tokens", tokens(splits.report)},
          {"sink_positions", StrCat(options.sink_positions)},
          {"ridge", StrCat(options.ridge)},
          {"seed", StrCat(options.seed)}};
}

// One experiment.
class LinearizedTraining {
 public:
  LinearizedTraining(const ExperimentContext& context, const TrainingMethod& method, std::vector<int> order,
                     std::vector<CorpusPlan> corpora)
      : context_(context),
        method_(method),
        order_(std::move(order)),
        corpora_(std::move(corpora)),
        text_(TextOf(corpora_.front())),
        plan_(PlanTraining(method, order_)),
        control_plan_(PlanControl(method, plan_)),
        work_(TotalWork(), context.progress, context.cancelled) {}

  absl::StatusOr<ExperimentResult> Run() {
    GH_RETURN_IF_ERROR(MakeDirectories(context_.directory));
    TrainingOutcome outcome{context_, method_, plan_, text_, corpora_, order_};
    work_.SetStage("perplexity of the untouched model");
    {
      const TrainableModel untouched(context_.model, context_.options.sink_positions);
      GH_ASSIGN_OR_RETURN(outcome.untouched, Measure("untouched", untouched, Decision::kHard));
    }
    GH_RETURN_IF_ERROR(RunSchedule(outcome));
    GH_RETURN_IF_ERROR(RunControl(outcome));
    std::error_code ignored;
    for (const TrainingPlan* plan : {&plan_, &control_plan_}) fs::remove(CheckpointPath(*plan), ignored);
    return ReportTraining(outcome);
  }

 private:
  std::string CheckpointPath(const TrainingPlan& plan) const {
    return StrCat(context_.directory, "/", &plan == &plan_ ? "run" : "control", ".safetensors");
  }

  TrainerOptions OptionsFor(const TrainingPlan& plan) const {
    TrainerOptions options;
    options.batch_sequences = method_.batch_sequences;
    options.evaluate_every = method_.evaluate_every;
    options.weight_decay = method_.weight_decay;
    options.gradient_clip = method_.gradient_clip;
    options.gate_learning_rate = method_.gate_learning_rate;
    options.sink_positions = context_.options.sink_positions;
    options.ridge = context_.options.ridge;
    options.seed = context_.options.seed;
    options.checkpoint_path = CheckpointPath(plan);
    options.identity = IdentityOf(context_, method_, corpora_.front(), plan, order_);
    return options;
  }

  double TotalWork() const {
    double total = 0;
    for (const TrainingPlan* plan : {&plan_, &control_plan_}) {
      total += Trainer::TotalWork(context_.model, *plan, text_, OptionsFor(*plan));
    }
    const double arms = method_.schedule == TrainingSchedule::kTwoPhase ? 4 : 3;
    double held_out = 0;
    for (const CorpusPlan& corpus : corpora_) {
      held_out += static_cast<double>(corpus.splits.report.size()) * corpus.splits.window;
    }
    return total + arms * held_out * context_.model.config.layers;
  }

  absl::StatusOr<TrainingArm> Measure(const std::string& name, const TrainableModel& model, Decision decision) {
    TrainingArm arm;
    arm.name = name;
    arm.routed = decision == Decision::kHard;
    for (int layer = 0; layer < context_.model.config.layers; ++layer) arm.modes.push_back(model.layer(layer).mode);
    for (const CorpusPlan& corpus : corpora_) {
      const at::Tensor ids = BlockIds(corpus.corpus->tokens, corpus.splits.report, corpus.splits.window);
      GH_ASSIGN_OR_RETURN(arm.evaluations.emplace_back(), Evaluate(model, ids, decision, work_));
    }
    return arm;
  }

  absl::Status RunSchedule(TrainingOutcome& outcome) {
    const TrainerOptions options = OptionsFor(plan_);
    Trainer trainer(context_.model, plan_, text_, options, work_);
    GH_RETURN_IF_ERROR(trainer.Run());
    outcome.run_progress = trainer.progress();
    work_.SetStage(StrCat(plan_.arm, ": final figures"));
    if (method_.schedule == TrainingSchedule::kTwoPhase) {
      GH_ASSIGN_OR_RETURN(outcome.others.emplace_back(),
                          Measure("two-phase, soft gates", trainer.model(), Decision::kSoft));
    }
    GH_ASSIGN_OR_RETURN(outcome.run, Measure(plan_.arm, trainer.model(), Decision::kHard));
    if (!method_.save_model) return absl::OkStatus();
    GH_RETURN_IF_ERROR(work_.Step(0));
    return SaveTrainedModel(context_.directory + "/model", context_.model.directory, trainer.model(),
                            Description(outcome));
  }

  absl::Status RunControl(TrainingOutcome& outcome) {
    const TrainerOptions options = OptionsFor(control_plan_);
    Trainer trainer(context_.model, control_plan_, text_, options, work_);
    GH_RETURN_IF_ERROR(trainer.Run());
    outcome.control_progress = trainer.progress();
    work_.SetStage("control: final figures");
    GH_ASSIGN_OR_RETURN(outcome.control, Measure("control", trainer.model(), Decision::kHard));
    return absl::OkStatus();
  }

  // Of the calibration beside a saved model: one operating point, what the training made.
  CalibrationInfo Description(const TrainingOutcome& outcome) const {
    CalibrationInfo info;
    info.name = "default";
    info.created = Rfc3339Now();
    info.corpus = context_.corpora.front().label;
    info.corpus_sha256 = context_.corpora.front().sha256;
    info.fit_tokens = static_cast<int64_t>(text_.fit.size()) * text_.window;
    info.report_tokens = static_cast<int64_t>(text_.report.size()) * text_.window;
    info.window_tokens = text_.window;
    info.sink_positions = context_.options.sink_positions;
    info.ridge = context_.options.ridge;
    info.seed = context_.options.seed;
    info.dtype = "float32";
    info.ingredients = {plan_.arm};
    const Interval cost = ChangeBetween(outcome, outcome.untouched, outcome.run, 0);
    OperatingPoint& point = info.operating_points.emplace_back();
    point.name = "trained";
    point.cost = cost.estimate;
    point.cost_low = cost.low;
    point.cost_high = cost.high;
    point.work_saved = outcome.run.WorkSaved(context_.model.config, context_.options.sink_positions, 0);
    point.linear_fraction = outcome.run.LinearFraction(0);
    for (const TrainableModel::Mode mode : outcome.run.modes) {
      OperatingLayer& layer = point.layers.emplace_back();
      if (mode == TrainableModel::Mode::kLinear) layer.linear_threshold = -1;
      if (mode == TrainableModel::Mode::kGated) layer.linear_threshold = 0.5;
    }
    return info;
  }

  const ExperimentContext& context_;
  const TrainingMethod& method_;
  const std::vector<int> order_;
  const std::vector<CorpusPlan> corpora_;  // the first is trained on
  const TrainingText text_;                // of the first
  const TrainingPlan plan_, control_plan_;
  Work work_;
};

}  // namespace

absl::StatusOr<ExperimentResult> TrainLinearized(const ExperimentContext& context, const TrainingMethod& method) {
  GH_RETURN_IF_ERROR(CheckMethod(method));
  GH_ASSIGN_OR_RETURN(const std::vector<int> order, OrderOf(context, method));
  GH_ASSIGN_OR_RETURN(std::vector<CorpusPlan> corpora, PlanCorpora(context));
  GH_RETURN_IF_ERROR(CheckMemory(context.model, corpora.front().splits.window));
  if (method.save_model) GH_RETURN_IF_ERROR(CheckSource(context.model.directory));
  ExperimentResult result;
  // Outside inference mode, for gradients.
  GH_RETURN_IF_ERROR(AtTorchBoundary(
      [&]() -> absl::Status {
        LinearizedTraining training(context, method, order, std::move(corpora));
        GH_ASSIGN_OR_RETURN(result, training.Run());
        return absl::OkStatus();
      },
      /*grad=*/true));
  return result;
}

}  // namespace gatehouse
