#include "server/engine/analysis/whole_model_gating.h"

#include <ATen/ops/cat.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/damage_gate.h"
#include "server/engine/analysis/ladder_fit.h"
#include "server/engine/analysis/operating_points.h"
#include "server/engine/training/budget_tuning.h"

namespace gatehouse {
namespace {

constexpr double kStandardBudgets[] = {0.005, 0.01, 0.02, 0.05};
constexpr int kDefaultTuneSteps = 200;

int TuneSteps(const BudgetOptions& options) {
  if (!options.tune) return 0;
  return options.tune_steps == 0 ? kDefaultTuneSteps : options.tune_steps;
}

int LadderNeurons(const ModelConfig& config, const BudgetOptions& options) {
  if (!options.ladders) return 0;
  return std::max(1, static_cast<int>(std::lround(options.ladder_share * config.d_mlp)));
}

class Gating {
 public:
  Gating(const ModelWeights& model, const CalibrateOptions& options, const std::vector<FittedMlp>& fitted,
         const GatingSplits& splits, Work& work)
      : model_(model), options_(options), budget_(options.budget), fitted_(fitted), splits_(splits), work_(work) {}

  absl::StatusOr<WholeModelGating> Run() {
    GH_RETURN_IF_ERROR(FitLadders());
    work_.SetStage("whole-model gating: gates");
    GH_RETURN_IF_ERROR(SetDamageGates(model_, options_.sink_positions, budget_.tune_work_saved, options_.seed,
                                      splits_.gate, result_.paths, work_));
    if (budget_.sequential) GH_RETURN_IF_ERROR(FitInSequence());
    if (budget_.tune) GH_RETURN_IF_ERROR(Tune());
    const PointSearchOptions search{
        .budgets = AllBudgets(budget_), .sinks = options_.sink_positions, .seed = options_.seed};
    GH_ASSIGN_OR_RETURN(result_.points,
                        FindOperatingPoints(model_, result_.paths, search, splits_.select, splits_.report, work_));
    return std::move(result_);
  }

 private:
  void SetStage(std::string_view what, int layer) {
    work_.SetStage(StrCat("whole-model gating: ", what, ": layer ", layer + 1, " of ", model_.config.layers));
  }

  static void SetSurrogate(const Surrogate& surrogate, CheapPaths& paths) {
    paths.surrogate_weight = surrogate.weight;
    paths.surrogate_bias = surrogate.bias;
  }

  // REQUIRES: the fit stream is in the layer.
  absl::Status SetLadder(int layer, double norm_limit, CheapPaths& paths) {
    const int neurons = LadderNeurons(model_.config, budget_);
    if (neurons == 0) return absl::OkStatus();
    GH_ASSIGN_OR_RETURN(const Ladder ladder, FitLadder(model_, layer, splits_.fit, neurons, options_.sink_positions,
                                                       norm_limit, options_.ridge, work_));
    paths.ladder_weight = ladder.rest.weight;
    paths.ladder_bias = ladder.rest.bias;
    paths.ladder_neurons = ladder.neurons;
    return absl::OkStatus();
  }

  // Each layer's own surrogate, and a ladder.
  absl::Status FitLadders() {
    SplitStream& fit = splits_.fit;
    fit.Restart();
    for (int layer = 0; layer < model_.config.layers; ++layer) {
      SetStage("ladder", layer);
      GH_RETURN_IF_ERROR(fit.Enter(layer, work_));
      CheapPaths paths;
      SetSurrogate(fitted_[layer].surrogate, paths);
      GH_RETURN_IF_ERROR(SetLadder(layer, fitted_[layer].norm_limit, paths));
      result_.paths.push_back(std::move(paths));
      GH_RETURN_IF_ERROR(fit.Leave(work_));
    }
    if (budget_.ladders) result_.ingredients.push_back("ladders");
    return absl::OkStatus();
  }

  // Surrogates and ladders anew, each on the stream as the gated layers before it left it.
  absl::Status FitInSequence() {
    SplitStream& fit = splits_.fit;
    fit.Restart();
    const std::vector<OperatingLayer> point = ShiftedPoint(result_.paths, 0);
    GatedMlps mlps(model_, result_.paths, point, options_.sink_positions);
    for (int layer = 0; layer < model_.config.layers; ++layer) {
      SetStage("in sequence", layer);
      GH_RETURN_IF_ERROR(fit.Enter(layer, work_));
      GH_ASSIGN_OR_RETURN(const FittedMlp fitted,
                          FitMlp(model_, layer, fit, options_.sink_positions, options_.ridge, work_));
      SetSurrogate(fitted.surrogate, result_.paths[layer]);
      GH_RETURN_IF_ERROR(SetLadder(layer, fitted.norm_limit, result_.paths[layer]));
      GH_RETURN_IF_ERROR(fit.Leave([&](const at::Tensor& x) { return mlps.Write(layer, x); }, work_));
    }
    result_.ingredients.push_back("sequential");
    return absl::OkStatus();
  }

  absl::Status Tune() {
    const c10::InferenceMode guard(false);
    const TuningOptions options{.steps = TuneSteps(budget_),
                                .sequences = budget_.tune_sequences,
                                .work_saved = budget_.tune_work_saved,
                                .sinks = options_.sink_positions,
                                .seed = options_.seed};
    const at::Tensor ids = at::cat({splits_.fit.ids(), splits_.gate.ids()});
    GH_RETURN_IF_ERROR(TuneGating(model_, ids, options, result_.paths, work_).status());
    result_.ingredients.push_back("tuned");
    return absl::OkStatus();
  }

  const ModelWeights& model_;
  const CalibrateOptions& options_;
  const BudgetOptions& budget_;
  const std::vector<FittedMlp>& fitted_;
  const GatingSplits& splits_;
  Work& work_;
  WholeModelGating result_;
};

}  // namespace

absl::Status CheckBudgetOptions(const BudgetOptions& options) {
  for (const double budget : options.budgets) {
    if (!(budget > 0 && budget <= 10)) {
      return absl::InvalidArgumentError(StrCat("budgets holds ", budget, ", outside (0, 10]"));
    }
  }
  if (options.budgets.size() > 32) {
    return absl::InvalidArgumentError(StrCat("budgets holds ", options.budgets.size(), ", over 32"));
  }
  if (!(options.ladder_share > 0 && options.ladder_share < 1)) {
    return absl::InvalidArgumentError(StrCat("ladder_share is ", options.ladder_share, ", outside (0, 1)"));
  }
  if (options.tune_steps < 0 || options.tune_steps > 100'000) {
    return absl::InvalidArgumentError(StrCat("tune_steps is ", options.tune_steps, ", outside [0, 100000]"));
  }
  if (options.tune_sequences < 1 || options.tune_sequences > 256) {
    return absl::InvalidArgumentError(StrCat("tune_sequences is ", options.tune_sequences, ", outside [1, 256]"));
  }
  if (!(options.tune_work_saved > 0 && options.tune_work_saved < 1)) {
    return absl::InvalidArgumentError(StrCat("tune_work_saved is ", options.tune_work_saved, ", outside (0, 1)"));
  }
  return absl::OkStatus();
}

std::vector<double> AllBudgets(const BudgetOptions& options) {
  std::set<double> budgets(std::begin(kStandardBudgets), std::end(kStandardBudgets));
  budgets.insert(options.budgets.begin(), options.budgets.end());
  return {budgets.begin(), budgets.end()};
}

absl::StatusOr<WholeModelGating> GateWholeModel(const ModelWeights& model, const CalibrateOptions& options,
                                                const std::vector<FittedMlp>& fitted, const GatingSplits& splits,
                                                Work& work) {
  return Gating(model, options, fitted, splits, work).Run();
}

double WholeModelGatingWork(const ModelWeights& model, const CalibrateOptions& options, const GatingSplits& splits) {
  const double layers = model.config.layers;
  const double fit = (5 + 7.0 * options.budget.sequential) * static_cast<double>(splits.fit.tokens());
  const double gates = 5.0 * static_cast<double>(splits.gate.tokens());
  const double tuning =
      4.0 * TuneSteps(options.budget) * options.budget.tune_sequences * static_cast<double>(splits.fit.window());
  const double points =
      static_cast<double>(AllBudgets(options.budget).size()) *
      (7.0 * static_cast<double>(splits.select.tokens()) + static_cast<double>(splits.report.tokens()));
  return (fit + gates + tuning) * layers + points * (layers + 1);
}

}  // namespace gatehouse
