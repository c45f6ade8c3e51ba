#include "server/serving/experiment_checks.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/option_checks.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxCorpora = 16;
constexpr size_t kMaxThresholds = 1000;
constexpr size_t kMaxBottlenecks = 64;
constexpr int kMaxSteps = 1'000'000;
constexpr int kMaxCount = 1 << 30;

absl::Status CheckCorpora(const ExperimentRequest& request) {
  const size_t least = std::holds_alternative<NoFlyMethod>(request.spec.method) ? 2 : 1;
  const size_t count = request.corpora.size();
  if (!(count >= least && count <= kMaxCorpora)) {
    return absl::InvalidArgumentError(StrCat("corpora has ", count, " entries, ", ExperimentKind(request.spec.method),
                                             " must have ", least, " to ", kMaxCorpora));
  }
  std::set<std::string> seen;
  for (const std::string& corpus : request.corpora) {
    if (!seen.insert(corpus).second) {
      return absl::InvalidArgumentError(StrCat("corpora has ", corpus, " twice, must have each once"));
    }
  }
  return absl::OkStatus();
}

// One for each method.
struct MethodChecks {
  const ModelInfo& model;

  absl::Status operator()(const LinearizationCostMethod&) const { return absl::OkStatus(); }
  absl::Status operator()(const RoutabilityMethod&) const { return absl::OkStatus(); }

  absl::Status operator()(const GateSweepMethod& method) const {
    const size_t count = method.thresholds.size();
    if (!(count >= 1 && count <= kMaxThresholds)) {
      return absl::InvalidArgumentError(
          StrCat("gate_sweep.thresholds has ", count, " entries, must have 1 to ", kMaxThresholds));
    }
    for (const double threshold : method.thresholds) {
      GH_RETURN_IF_ERROR(CheckNumber("gate_sweep.thresholds", threshold, 0, 1));
    }
    return CheckDistinct("gate_sweep.bottlenecks", method.bottlenecks, 1, model.d_model / 2, kMaxBottlenecks);
  }

  absl::Status operator()(const NoFlyMethod& method) const {
    GH_RETURN_IF_ERROR(CheckNumber("no_fly.least_mean", method.least_mean, 0, 1e6));
    GH_RETURN_IF_ERROR(CheckCount("no_fly.least_count", method.least_count, 1, kMaxCount));
    GH_RETURN_IF_ERROR(CheckNumber("no_fly.least_positive", method.least_positive, 0, 1));
    return CheckCount("no_fly.least_count_other", method.least_count_other, 1, kMaxCount);
  }

  absl::Status operator()(const NonlinearityMethod& method) const {
    return CheckCount("nonlinearity.clusters", method.clusters, 2, 64);
  }

  absl::Status operator()(const PolynomialProbeMethod& method) const {
    GH_RETURN_IF_ERROR(CheckDistinct("polynomial_probe.degrees", method.degrees, 1, 7, 7));
    GH_RETURN_IF_ERROR(CheckCount("polynomial_probe.components", method.components, 1, model.d_model));
    GH_RETURN_IF_ERROR(CheckAbove("polynomial_probe.ridge", method.ridge, 0, 1e12));
    return CheckAbove("polynomial_probe.high_share", method.high_share, 0, 1);
  }

  absl::Status operator()(const ConsensusMethod& method) const {
    return CheckCount("consensus.max_consensus", method.max_consensus, 1, 64);
  }
  absl::Status operator()(const AblationMethod& method) const {
    return CheckCount("ablation.max_consensus", method.max_consensus, 1, 64);
  }
  absl::Status operator()(const QuorumMethod& method) const {
    return CheckCount("quorum.max_consensus", method.max_consensus, 1, 64);
  }

  absl::Status operator()(const TrainingMethod& method) const {
    GH_RETURN_IF_ERROR(CheckLayers("training.order", method.order, model));
    // The second phase is the final steps.
    const int least_final = method.schedule == TrainingSchedule::kTwoPhase ? 1 : 0;
    GH_RETURN_IF_ERROR(CheckCount("training.steps_per_layer", method.steps_per_layer, 1, kMaxSteps));
    GH_RETURN_IF_ERROR(CheckCount("training.final_steps", method.final_steps, least_final, kMaxSteps));
    GH_RETURN_IF_ERROR(CheckCount("training.batch_sequences", method.batch_sequences, 1, 4096));
    GH_RETURN_IF_ERROR(CheckNumber("training.learning_rate", method.learning_rate, 0, 1));
    GH_RETURN_IF_ERROR(CheckNumber("training.weight_decay", method.weight_decay, 0, 1));
    GH_RETURN_IF_ERROR(CheckAbove("training.gradient_clip", method.gradient_clip, 0, 1e6));
    GH_RETURN_IF_ERROR(CheckAbove("training.gate_learning_rate", method.gate_learning_rate, 0, 1));
    GH_RETURN_IF_ERROR(CheckNumber("training.gate_pressure", method.gate_pressure, 0, 1e3));
    return CheckCount("training.evaluate_every", method.evaluate_every, 1, kMaxSteps);
  }
};

absl::Status CheckOrderIsAmong(const std::vector<int>& layers, const std::vector<int>& order) {
  for (const int layer : order) {
    if (layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end()) continue;
    return absl::InvalidArgumentError(StrCat("training.order names layer ", layer, ", which is not among layers"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckExperiment(const ExperimentRequest& request, const ModelInfo& model) {
  GH_RETURN_IF_ERROR(CheckCorpora(request));
  const ExperimentOptions& options = request.spec.options;
  GH_RETURN_IF_ERROR(CheckLayers("layers", options.layers, model));
  GH_RETURN_IF_ERROR(CheckSplitOptions(options, model));
  GH_RETURN_IF_ERROR(CheckAbove("ridge", options.ridge, 0, 1e12));
  GH_RETURN_IF_ERROR(CheckCount("bootstrap_resamples", options.bootstrap_resamples, 100, 1'000'000));
  if (!request.resume.empty() && !std::holds_alternative<TrainingMethod>(request.spec.method)) {
    return absl::InvalidArgumentError(
        StrCat("resume is for training: ", ExperimentKind(request.spec.method), " keeps no checkpoint"));
  }
  GH_RETURN_IF_ERROR(std::visit(MethodChecks{model}, request.spec.method));
  const auto* training = std::get_if<TrainingMethod>(&request.spec.method);
  return training == nullptr ? absl::OkStatus() : CheckOrderIsAmong(options.layers, training->order);
}

}  // namespace gatehouse
