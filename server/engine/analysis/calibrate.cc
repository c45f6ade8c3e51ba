#include "server/engine/analysis/calibrate.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/clock.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/corpus_splits.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/logistic_gate.h"
#include "server/engine/analysis/mean_activations.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/neuron_discovery.h"
#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/whole_model_gating.h"
#include "server/engine/analysis/work.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

constexpr int kMostSinkPositions = 1024;

absl::Status CheckOptions(const CalibrateOptions& options) {
  const auto outside = [](std::string_view name, auto value, std::string_view range) {
    return absl::InvalidArgumentError(StrCat(name, " is ", value, ", outside ", range));
  };
  if (options.sink_positions < 0 || options.sink_positions > kMostSinkPositions) {
    return outside("sink_positions", options.sink_positions, "[0, 1024]");
  }
  if (!(options.ridge > 0 && options.ridge <= 1e12)) return outside("ridge", options.ridge, "(0, 1e12]");
  if (!(options.gateable_cost_limit >= 0 && options.gateable_cost_limit <= 1e6)) {
    return outside("gateable_cost_limit", options.gateable_cost_limit, "[0, 1e6]");
  }
  if (options.max_consensus < 1 || options.max_consensus > 64) {
    return outside("max_consensus", options.max_consensus, "[1, 64]");
  }
  return CheckBudgetOptions(options.budget);
}

absl::Status CheckTokens(std::span<const int32_t> tokens, int vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          StrCat("token ", i, " of the corpus is ", tokens[i], ", outside the vocabulary [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

// One calibration of one model, layer by layer.
class Calibrator {
 public:
  Calibrator(const ModelWeights& model, const CalibrateOptions& options, std::span<const int32_t> tokens,
             const CorpusSplits& splits, const ProgressFn& progress, const std::atomic<bool>& cancelled)
      : model_(model),
        options_(options),
        fit_(model, tokens, splits.fit, splits.window),
        gate_(model, tokens, splits.gate, splits.window),
        select_(model, tokens, splits.select, splits.window),
        report_(model, tokens, splits.report, splits.window),
        work_(TotalWork(), progress, cancelled) {}

  absl::StatusOr<CalibrationData> Run() {
    work_.SetStage("perplexity of the full model");
    for (SplitStream* split : {&gate_, &select_, &report_}) {
      GH_RETURN_IF_ERROR(split->MeasureFull(work_));
      if (!split->full_cross_entropy().isfinite().all().item<bool>()) {
        return absl::InternalError("the model's cross-entropy on the corpus is not finite");
      }
    }
    CalibrationData data;
    data.info = Description();
    data.info.layers.resize(model_.config.layers);
    GH_RETURN_IF_ERROR(ForLayers([&](int layer) -> absl::Status {
      GH_RETURN_IF_ERROR(FitLayer(layer, data.info.layers[layer]));
      return GatesWholeModel() ? absl::OkStatus() : MeasureLayer(layer, data.info.layers[layer]);
    }));
    if (GatesWholeModel()) {
      GH_RETURN_IF_ERROR(Ours(GateModel(data.info)));
      for (SplitStream* split : Splits()) split->Restart();
      GH_RETURN_IF_ERROR(ForLayers([&](int layer) { return MeasureLayer(layer, data.info.layers[layer]); }));
    }
    for (CheapPaths& paths : paths_) {
      for (at::Tensor* tensor : paths.Tensors()) *tensor = tensor->cpu();
      paths.neuron_mean = means_[data.layers.size()];
      data.layers.push_back(static_cast<CalibrationData::Layer&&>(paths));
    }
    return data;
  }

 private:
  // In evaluations of one layer for one token.
  double TotalWork() {
    const double fit = fit_.tokens(), held_out = gate_.tokens() + select_.tokens() + report_.tokens();
    const double replaced = gate_.tokens() + select_.tokens() + 3 * report_.tokens();
    const double layers = model_.config.layers;
    const double each = 2 * (fit + held_out) + 2 * (2 * fit + held_out) + gate_.tokens() + report_.tokens();
    const double plain = held_out * (layers + 1) + layers * each + replaced * layers * (layers + 1) / 2;
    if (!GatesWholeModel()) return plain;
    return plain + layers * (2 * fit + 3 * held_out) +
           WholeModelGatingWork(model_, options_, {fit_, gate_, select_, report_});
  }

  CalibrationInfo Description() const {
    CalibrationInfo info;
    info.name = options_.name;
    info.model_fingerprint = model_.fingerprint;
    info.created = Rfc3339Now();
    info.corpus = options_.corpus;
    info.corpus_sha256 = options_.corpus_sha256;
    info.fit_tokens = fit_.tokens();
    info.gate_tokens = gate_.tokens();
    info.select_tokens = select_.tokens();
    info.report_tokens = report_.tokens();
    info.window_tokens = static_cast<int>(fit_.window());
    info.sink_positions = options_.sink_positions;
    info.gateable_cost_limit = options_.gateable_cost_limit;
    info.ridge = options_.ridge;
    info.seed = options_.seed;
    info.dtype = model_.token_embedding.scalar_type() == at::kBFloat16 ? "bfloat16" : "float32";
    return info;
  }

  void SetStage(std::string_view what, int layer) {
    work_.SetStage(StrCat(what, ": layer ", layer + 1, " of ", model_.config.layers));
  }

  std::array<SplitStream*, 4> Splits() { return {&fit_, &gate_, &select_, &report_}; }

  bool GatesWholeModel() const { return !options_.budget.budgets.empty(); }

  // A fit that is impossible is nothing the caller could have prepared better.
  static absl::Status Ours(const absl::Status& status) {
    return absl::IsFailedPrecondition(status) ? absl::InternalError(status.message()) : status;
  }

  // Calls `body` for each layer with all streams in it.
  absl::Status ForLayers(const std::function<absl::Status(int layer)>& body) {
    for (int layer = 0; layer < model_.config.layers; ++layer) {
      SetStage("surrogate", layer);
      for (SplitStream* split : Splits()) GH_RETURN_IF_ERROR(split->Enter(layer, work_));
      GH_RETURN_IF_ERROR(Annotate(Ours(body(layer)), StrCat("layer ", layer)));
      for (SplitStream* split : Splits()) GH_RETURN_IF_ERROR(split->Leave(work_));
    }
    return absl::OkStatus();
  }

  // A.1, A.3, B.1 and B.4.
  absl::Status FitLayer(int layer, LayerCalibration& found) {
    GH_ASSIGN_OR_RETURN(FittedMlp fitted, FitMlp(model_, layer, fit_, options_.sink_positions, options_.ridge, work_));
    SetStage("neurons", layer);
    GH_ASSIGN_OR_RETURN(const MlpObservation observation, Observe(model_, layer, fitted));
    FindNeurons(layer, observation, found);
    GH_ASSIGN_OR_RETURN(means_.emplace_back(), MeanActivations(model_, layer, gate_, observation.kept.front(), work_));
    found.neuron_means = true;
    GH_RETURN_IF_ERROR(FindRandomNeurons(layer, found));
    // A.7 has gates of its own.
    if (!GatesWholeModel()) {
      SetStage("gate", layer);
      GH_ASSIGN_OR_RETURN(LogisticGate gate, FitGate(layer, fitted.surrogate, observation.kept.front()));
      CheapPaths& paths = paths_.emplace_back();
      paths.surrogate_weight = fitted.surrogate.weight;
      paths.surrogate_bias = fitted.surrogate.bias;
      paths.gate_weight = gate.weight;
      paths.gate_bias = gate.bias;
    }
    fitted_.push_back(std::move(fitted));
    return absl::OkStatus();
  }

  // A.7: surrogates and gates of all layers anew.
  absl::Status GateModel(CalibrationInfo& info) {
    GH_ASSIGN_OR_RETURN(WholeModelGating gating,
                        GateWholeModel(model_, options_, fitted_, {fit_, gate_, select_, report_}, work_));
    info.ingredients = std::move(gating.ingredients);
    info.operating_points = std::move(gating.points);
    paths_ = std::move(gating.paths);
    for (size_t layer = 0; layer < paths_.size(); ++layer) {
      const at::Tensor& neurons = paths_[layer].ladder_neurons;
      info.layers[layer].ladder_neurons = neurons.defined() ? static_cast<int>(neurons.numel()) : 0;
      fitted_[layer].surrogate.weight = paths_[layer].surrogate_weight;
      fitted_[layer].surrogate.bias = paths_[layer].surrogate_bias;
    }
    return absl::OkStatus();
  }

  // What the layer's surrogate and gate do on tokens they were not fitted on.
  absl::Status MeasureLayer(int layer, LayerCalibration& found) {
    SetStage("costs", layer);
    const FittedMlp& fitted = fitted_[layer];
    GH_ASSIGN_OR_RETURN(const SurrogateR2 r2,
                        MeasureR2(model_, layer, fitted, report_, options_.sink_positions, work_));
    found.surrogate_r2 = r2.without_sinks;
    found.surrogate_r2_with_sinks = r2.with_sinks;
    if (GatesWholeModel()) {
      GH_ASSIGN_OR_RETURN(const MlpObservation observation, Observe(model_, layer, fitted));
      SetPercentiles(PercentilesOf(observation.scores), found);
    }
    const LogisticGate gate{paths_[layer].gate_weight, paths_[layer].gate_bias};
    GH_RETURN_IF_ERROR(MeasureCosts(layer, fitted, gate, found));
    return CheckFinite(found);
  }

  // What `model`'s MLP does on all tokens but those it was fitted on.
  absl::StatusOr<MlpObservation> Observe(const ModelWeights& model, int layer, const FittedMlp& fitted) {
    const SplitStream* const splits[] = {&gate_, &select_, &report_};
    return ObserveMlp(model, layer, fitted, splits, options_.sink_positions, work_);
  }

  // B.1 and B.4, and the null of shuffled regimes.
  void FindNeurons(int layer, const MlpObservation& observation, LayerCalibration& found) const {
    const ScorePercentiles percentiles = PercentilesOf(observation.scores);
    SetPercentiles(percentiles, found);
    const std::vector<Regime> regimes = RegimesOf(observation.scores, percentiles);
    NeuronFindings findings = DiscoverNeurons(observation.firing, regimes, options_.max_consensus);
    found.consensus = std::move(findings.consensus);
    found.exception = std::move(findings.exception);
    found.gateway = std::move(findings.gateway);
    const FindingCounts null =
        ShuffledFindings(observation.firing, regimes, options_.max_consensus, kNullShuffles, LayerSeed(layer));
    found.consensus_null = null.consensus;
    found.exception_null = null.exception;
    found.gateway_null = null.gateway;
  }

  static void SetPercentiles(const ScorePercentiles& percentiles, LayerCalibration& found) {
    found.p25 = percentiles.p25;
    found.p50 = percentiles.p50;
    found.p70 = percentiles.p70;
    found.p95 = percentiles.p95;
  }

  // The null of re-initialised weights: the same rules, the layer's MLP drawn anew.
  absl::Status FindRandomNeurons(int layer, LayerCalibration& found) {
    const ModelWeights random_model = WithRandomMlp(model_, layer, LayerSeed(layer));
    GH_ASSIGN_OR_RETURN(const FittedMlp fitted,
                        FitMlp(random_model, layer, fit_, options_.sink_positions, options_.ridge, work_));
    GH_ASSIGN_OR_RETURN(const MlpObservation observation, Observe(random_model, layer, fitted));
    const std::vector<Regime> regimes = RegimesOf(observation.scores, PercentilesOf(observation.scores));
    const NeuronFindings findings = DiscoverNeurons(observation.firing, regimes, options_.max_consensus);
    found.consensus_random = static_cast<double>(findings.consensus.size());
    found.exception_random = static_cast<double>(findings.exception.size());
    found.gateway_random = static_cast<double>(findings.gateway.size());
    return absl::OkStatus();
  }

  // A.3.  kept: the gate split's tokens that are no sinks, [blocks, window] bool.
  absl::StatusOr<LogisticGate> FitGate(int layer, const Surrogate& surrogate, const at::Tensor& kept) {
    GH_ASSIGN_OR_RETURN(const at::Tensor linear,
                        LinearCrossEntropy(model_, layer, gate_, surrogate, options_.sink_positions, work_));
    // A block's last token predicts nothing.
    const int64_t predicted = gate_.window() - 1;
    const at::Tensor used = kept.narrow(1, 0, predicted);
    const at::Tensor delta = (linear - gate_.full_cross_entropy()).index({used}).cpu();
    if (delta.numel() == 0) return absl::FailedPreconditionError("every token of the gate split is a sink");
    const std::vector<uint8_t> labels =
        GateLabels({delta.const_data_ptr<double>(), static_cast<size_t>(delta.numel())});
    return FitLogisticGate(gate_.x().narrow(1, 0, predicted).index({used}), labels);
  }

  // A.2, and A.3's default: which layers are gateable is decided on the selection split
  // and what they cost is reported on another.
  absl::Status MeasureCosts(int layer, const FittedMlp& fitted, const LogisticGate& gate, LayerCalibration& found) {
    const int sinks = options_.sink_positions;
    GH_ASSIGN_OR_RETURN(const at::Tensor selected,
                        LinearCrossEntropy(model_, layer, select_, fitted.surrogate, sinks, work_));
    found.gateable = PerplexityChange(select_.full_cross_entropy(), selected) <= options_.gateable_cost_limit;

    const at::Tensor& full = report_.full_cross_entropy();
    GH_ASSIGN_OR_RETURN(const at::Tensor linear,
                        LinearCrossEntropy(model_, layer, report_, fitted.surrogate, sinks, work_));
    found.linear_cost = PerplexityChange(full, linear);
    GH_ASSIGN_OR_RETURN(const at::Tensor with_sinks,
                        LinearCrossEntropy(model_, layer, report_, fitted.with_sinks, 0, work_));
    found.linear_cost_with_sinks = PerplexityChange(full, with_sinks);
    GH_ASSIGN_OR_RETURN(const GatedRun gated,
                        GatedCrossEntropy(model_, layer, report_, fitted.surrogate, gate, sinks, work_));
    found.gate_cost = PerplexityChange(full, gated.cross_entropy);
    found.gate_linear_fraction = gated.linear_fraction;
    return absl::OkStatus();
  }

  static absl::Status CheckFinite(const LayerCalibration& found) {
    for (const double value : {found.linear_cost, found.linear_cost_with_sinks, found.surrogate_r2,
                               found.surrogate_r2_with_sinks, found.gate_cost, found.p25, found.p95}) {
      if (!std::isfinite(value)) return absl::InternalError("the model's numbers are not finite");
    }
    return absl::OkStatus();
  }

  // Seeds of different layers and of neighbouring calibrations differ.
  uint64_t LayerSeed(int layer) const { return options_.seed * 1'000'003 + static_cast<uint64_t>(layer); }

  const ModelWeights& model_;
  const CalibrateOptions& options_;
  SplitStream fit_, gate_, select_, report_;
  Work work_;
  std::vector<FittedMlp> fitted_;  // of each layer
  std::vector<CheapPaths> paths_;
  std::vector<at::Tensor> means_;  // of each layer, [d_mlp]
};

}  // namespace

absl::StatusOr<CalibrationData> Calibrate(const ModelWeights& model, const CalibrateOptions& options,
                                          std::span<const int32_t> tokens, const ProgressFn& progress,
                                          const std::atomic<bool>& cancelled) {
  GH_RETURN_IF_ERROR(CheckOptions(options));
  GH_ASSIGN_OR_RETURN(const CorpusSplits splits,
                      PlanSplits(options, static_cast<int64_t>(tokens.size()), model.config));
  if (!options.budget.budgets.empty()) GH_RETURN_IF_ERROR(CheckIntervalsExist(splits));
  GH_RETURN_IF_ERROR(CheckVariety(tokens));
  GH_RETURN_IF_ERROR(CheckTokens(tokens, model.config.vocab_size));
  CalibrationData data;
  GH_RETURN_IF_ERROR(AtTorchBoundary([&]() -> absl::Status {
    Calibrator calibrator(model, options, tokens, splits, progress, cancelled);
    GH_ASSIGN_OR_RETURN(data, calibrator.Run());
    return absl::OkStatus();
  }));
  if (progress) progress(1, "done");
  return data;
}

}  // namespace gatehouse
