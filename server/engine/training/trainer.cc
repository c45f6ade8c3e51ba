#include "server/engine/training/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/item.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "server/base/clock.h"
#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/split_stream.h"

namespace gatehouse {
namespace {

using Change = TrainingStage::Change;

// Tokens that go forward and back at a time; holds activations and logits in bounds.
constexpr int64_t kMicroTokens = 512;
constexpr int64_t kEvaluationTokens = 2048;
// A gate in front of an MLP begins here, so that nearly all the mixture is the MLP's.
constexpr double kNearlyClosed = 0.1;
// A step goes forward once and back, which costs twice as much.
constexpr double kStepWork = 3;

Surrogate Zeros(int64_t d, const at::TensorOptions& options) {
  return {at::zeros({d, d}, options), at::zeros({d}, options), {}};
}

}  // namespace

double Evaluation::Perplexity() const { return std::exp(cross_entropy.mean().item<double>()); }

absl::StatusOr<Evaluation> Evaluate(const TrainableModel& model, const at::Tensor& ids,
                                    TrainableModel::Decision decision, Work& work) {
  const c10::NoGradGuard no_grad;
  const int64_t blocks = ids.size(0), window = ids.size(1);
  const at::Device device = model.weights().token_embedding.device();
  Evaluation evaluation;
  evaluation.cross_entropy = at::empty({blocks, window - 1}, at::kDouble);
  evaluation.linear_tokens.assign(model.weights().config.layers, 0);
  const int64_t batch = std::max<int64_t>(1, kEvaluationTokens / window);
  for (int64_t first = 0; first < blocks; first += batch) {
    const int64_t count = std::min(batch, blocks - first);
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * window * model.weights().config.layers)));
    const TrainableModel::Result result = model.Run(ids.narrow(0, first, count).to(device), decision);
    evaluation.cross_entropy.narrow(0, first, count).copy_(result.cross_entropy);
    for (size_t layer = 0; layer < result.linear_tokens.size(); ++layer) {
      evaluation.linear_tokens[layer] += result.linear_tokens[layer];
    }
  }
  return evaluation;
}

Trainer::Trainer(const ModelWeights& model, const TrainingPlan& plan, const TrainingText& text,
                 const TrainerOptions& options, Work& work)
    : plan_(plan),
      text_(text),
      options_(options),
      work_(work),
      model_(model, options.sink_positions),
      optimizer_({.weight_decay = options.weight_decay}),
      batches_(text.tokens, text.train, text.window, options.batch_sequences, options.seed),
      report_ids_(BlockIds(text.tokens, text.report, text.window)) {}

double Trainer::MemoryBytes(const ModelWeights& model, int window) {
  const ModelConfig& config = model.config;
  const double tokens = std::max<double>(kMicroTokens, window);
  // Of each token: logits, their softmax and its gradient; in each layer what the gradients of
  // norms, attention and MLP need.
  const double logits = 3.0 * config.vocab_size;
  const double layer = 14.0 * config.d_model + (config.gated_mlp ? 5.0 : 3.0) * config.d_mlp;
  constexpr double kBytes = sizeof(float);
  return kBytes * (4.0 * static_cast<double>(model.parameters) + tokens * (logits + config.layers * layer));
}

double Trainer::TotalWork(const ModelWeights& model, const TrainingPlan& plan, const TrainingText& text,
                          const TrainerOptions& options) {
  const double layers = model.config.layers;
  const double window = text.window, report = window * static_cast<double>(text.report.size());
  const double fit = 4 * window * static_cast<double>(text.fit.size()) + 3 * report;
  double evaluations = 1 + std::floor(static_cast<double>(plan.steps) / options.evaluate_every), fitted = 0;
  for (const TrainingStage& stage : plan.stages) {
    ++evaluations;
    if (stage.change == Change::kLinearize || stage.change == Change::kGate) {
      fitted += fit * (stage.layers.empty() ? 0 : stage.layers.back() + 1);
    }
  }
  const double steps = kStepWork * layers * window * options.batch_sequences * static_cast<double>(plan.steps);
  return steps + evaluations * layers * report + fitted;
}

absl::Status Trainer::Run() {
  GH_RETURN_IF_ERROR(Resume());
  saved_at_ = MonotonicSeconds();
  while (progress_.step < plan_.steps || EvaluationIsDue()) {
    const absl::Status status = Advance();
    if (absl::IsCancelled(status)) {
      const absl::Status saved = Save();
      if (saved.ok()) return status;
      return absl::CancelledError(StrCat("cancelled, and the checkpoint was not written: ", Message(saved)));
    }
    GH_RETURN_IF_ERROR(status);
    if (MonotonicSeconds() - saved_at_ >= options_.checkpoint_seconds) GH_RETURN_IF_ERROR(Save());
  }
  return Save();
}

// One piece of work.  What is due at a step comes in this order: the measurement that ends a
// stage, the change that begins the next, the measurement after it, the step.
absl::Status Trainer::Advance() {
  const std::string stage = progress_.stage == 0 ? "" : plan_.stages[progress_.stage - 1].name;
  work_.SetStage(
      StrCat(plan_.arm, ": ", stage, stage.empty() ? "" : ", ", "step ", progress_.step, " of ", plan_.steps));
  if (EvaluationIsDue()) return AddCurvePoint();
  if (StageIsDue()) return BeginStage(plan_.stages[progress_.stage]);
  return TrainStep();
}

bool Trainer::StageIsDue() const {
  return progress_.stage < static_cast<int>(plan_.stages.size()) &&
         plan_.stages[progress_.stage].first_step <= progress_.step;
}

bool Trainer::EvaluationIsDue() const {
  if (!progress_.curve.empty() && progress_.curve.back().step == progress_.step) {
    // Measured at this step, but before a change?
    const int measured = progress_.curve.back().stage;
    return measured < progress_.stage && plan_.stages[progress_.stage - 1].change != Change::kNone;
  }
  return StageIsDue() || progress_.step % options_.evaluate_every == 0 || progress_.step == plan_.steps;
}

absl::Status Trainer::AddCurvePoint() {
  GH_ASSIGN_OR_RETURN(const Evaluation evaluation,
                      Evaluate(model_, report_ids_, TrainableModel::Decision::kHard, work_));
  const auto& linear = evaluation.linear_tokens;
  const double all = static_cast<double>(report_ids_.numel()) * static_cast<double>(linear.size());
  const double steps = static_cast<double>(progress_.summed_steps);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  progress_.curve.push_back({progress_.step, progress_.stage, evaluation.Perplexity(),
                             static_cast<double>(std::accumulate(linear.begin(), linear.end(), int64_t{0})) / all,
                             steps > 0 ? progress_.loss_sum / steps : nan,
                             steps > 0 ? progress_.norm_sum / steps : nan});
  progress_.loss_sum = progress_.norm_sum = 0;
  progress_.summed_steps = 0;
  return absl::OkStatus();
}

absl::Status Trainer::BeginStage(const TrainingStage& stage) {
  std::vector<SurrogateFit> fits;
  GH_ASSIGN_OR_RETURN(const std::vector<Surrogate> surrogates, FitSurrogates(stage, fits));
  Install(stage, surrogates);
  progress_.fits.insert(progress_.fits.end(), fits.begin(), fits.end());
  ++progress_.stage;
  return absl::OkStatus();
}

// Fits a surrogate of every layer of the stage, in one walk through the model: where the
// stage linearizes, each on the stream that the ones before it made.
absl::StatusOr<std::vector<Surrogate>> Trainer::FitSurrogates(const TrainingStage& stage,
                                                              std::vector<SurrogateFit>& fits) {
  const bool linearize = stage.change == Change::kLinearize;
  std::vector<Surrogate> surrogates;
  if (!linearize && stage.change != Change::kGate) return surrogates;
  const c10::NoGradGuard no_grad;
  const ModelWeights& weights = model_.weights();
  SplitStream fit(weights, text_.tokens, text_.fit, text_.window);
  SplitStream report(weights, text_.tokens, text_.report, text_.window);
  for (int layer = 0; layer <= stage.layers.back(); ++layer) {
    for (SplitStream* split : {&fit, &report}) GH_RETURN_IF_ERROR(split->Enter(layer, work_));
    SplitStream::WriteFn write = [&](const at::Tensor& x) { return model_.HardMlp()(layer, x); };
    if (std::binary_search(stage.layers.begin(), stage.layers.end(), layer)) {
      GH_ASSIGN_OR_RETURN(const FittedMlp fitted, FitMlp(weights, layer, fit, model_.sinks(), options_.ridge, work_));
      GH_ASSIGN_OR_RETURN(const SurrogateR2 r2, MeasureR2(weights, layer, fitted, report, model_.sinks(), work_));
      fits.push_back({layer, r2.without_sinks});
      surrogates.push_back(fitted.surrogate);
      if (linearize) {
        write = [&, surrogate = fitted.surrogate](const at::Tensor& x) {
          return model_.WithSinksInFull(layer, x, surrogate.Predict(x));
        };
      }
    }
    if (layer == stage.layers.back()) break;
    for (SplitStream* split : {&fit, &report}) GH_RETURN_IF_ERROR(split->Leave(write, work_));
  }
  return surrogates;
}

void Trainer::Install(const TrainingStage& stage, const std::vector<Surrogate>& surrogates) {
  for (size_t i = 0; i < stage.layers.size(); ++i) {
    const int layer = stage.layers[i];
    if (stage.change == Change::kLinearize) model_.Linearize(layer, surrogates[i]);
    if (stage.change == Change::kBringBack) model_.AddGate(layer, nullptr, 0.5);
    if (stage.change == Change::kGate) model_.AddGate(layer, &surrogates[i], kNearlyClosed);
  }
  if (stage.change == Change::kBringBack) model_.FreezeAllButGates();
}

double Trainer::StepWork(int64_t sequences) const {
  return kStepWork * static_cast<double>(sequences * batches_.window() * model_.weights().config.layers);
}

absl::Status Trainer::TrainStep() {
  const at::Tensor ids = batches_.Batch(progress_.step).to(model_.weights().token_embedding.device());
  const int64_t sequences = batches_.sequences(), window = batches_.window();
  const double predictions = static_cast<double>(sequences * (window - 1));
  const double pressure = plan_.pressure(progress_.step);
  const double gated_tokens = static_cast<double>(sequences * (window - model_.sinks()) * model_.gated_layers());
  const int64_t micro = std::max<int64_t>(1, kMicroTokens / window);
  ClearGradients(model_.parameters());
  double loss_sum = 0;
  for (int64_t first = 0; first < sequences; first += micro) {
    const int64_t count = std::min(micro, sequences - first);
    GH_RETURN_IF_ERROR(work_.Step(StepWork(count)));
    const TrainableModel::Result result = model_.Run(ids.narrow(0, first, count), plan_.decision);
    const at::Tensor loss = result.cross_entropy.sum() / predictions;
    loss_sum += loss.item<double>();
    at::Tensor objective = loss;
    if (pressure > 0 && result.full_mass.defined()) objective = loss + result.full_mass * (pressure / gated_tokens);
    objective.backward();
  }
  const double norm = ClipGradients(model_.parameters(), options_.gradient_clip);
  if (!std::isfinite(loss_sum) || !std::isfinite(norm)) {
    return absl::InternalError(StrCat("the loss or its gradient is not finite at step ", progress_.step,
                                      " of the training \"", plan_.arm, "\"; a lower learning_rate may help"));
  }
  optimizer_.Step(model_.parameters(), plan_.learning_rate(progress_.step), options_.gate_learning_rate);
  ClearGradients(model_.parameters());
  progress_.loss_sum += loss_sum;
  progress_.norm_sum += norm;
  ++progress_.summed_steps;
  ++progress_.step;
  return absl::OkStatus();
}

absl::Status Trainer::Save() {
  TrainingCheckpoint checkpoint;
  checkpoint.progress = progress_;
  for (const Parameter& parameter : model_.parameters()) checkpoint.parameters[parameter.name] = parameter.value;
  checkpoint.moments = optimizer_.moments();
  const absl::Status written = WriteTrainingCheckpoint(options_.checkpoint_path, options_.identity, checkpoint);
  if (absl::IsResourceExhausted(written)) return WithReason(written, reason::kDiskFull);
  GH_RETURN_IF_ERROR(written);
  saved_at_ = MonotonicSeconds();
  return absl::OkStatus();
}

absl::Status Trainer::Resume() {
  absl::StatusOr<TrainingCheckpoint> checkpoint = ReadTrainingCheckpoint(options_.checkpoint_path, options_.identity);
  if (absl::IsNotFound(checkpoint.status())) return absl::OkStatus();
  GH_RETURN_IF_ERROR(checkpoint.status());
  const TrainingProgress& progress = checkpoint->progress;
  const auto damaged = [&](std::string_view what) {
    return absl::InvalidArgumentError(StrCat(options_.checkpoint_path, ": the checkpoint is damaged: ", what));
  };
  if (progress.step < 0 || progress.step > plan_.steps || progress.stage < 0 ||
      progress.stage > static_cast<int>(plan_.stages.size())) {
    return damaged("its step or stage is out of range");
  }
  for (int stage = 0; stage < progress.stage; ++stage) {
    const Surrogate zeros = Zeros(model_.weights().config.d_model, model_.weights().token_embedding.options());
    Install(plan_.stages[stage], std::vector<Surrogate>(plan_.stages[stage].layers.size(), zeros));
  }
  if (checkpoint->parameters.size() != model_.parameters().size()) return damaged("it lacks parameters");
  const c10::NoGradGuard no_grad;
  const at::Device device = model_.weights().token_embedding.device();
  for (const Parameter& parameter : model_.parameters()) {
    const auto found = checkpoint->parameters.find(parameter.name);
    if (found == checkpoint->parameters.end() || found->second.sizes() != parameter.value.sizes()) {
      return damaged(StrCat("parameter ", parameter.name, " is missing or has another shape"));
    }
    parameter.value.copy_(found->second);
  }
  for (auto& [name, moments] : checkpoint->moments) {
    moments.first = moments.first.to(device);
    moments.second = moments.second.to(device);
  }
  optimizer_.set_moments(std::move(checkpoint->moments));
  progress_ = progress;
  return work_.Step(StepWork(batches_.sequences()) * static_cast<double>(progress_.step));
}

}  // namespace gatehouse
