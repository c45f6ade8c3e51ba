#include "server/engine/routing.h"

#include <utility>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr float kDefaultThreshold = 0.5f;

absl::Status CheckThreshold(std::string_view field, float threshold) {
  if (!(threshold >= 0 && threshold <= 1)) {
    return absl::InvalidArgumentError(StrCat(field, " is ", threshold, ", must be in [0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(std::string_view field, int layer, int layers) {
  if (!(layer >= 0 && layer < layers)) {
    return absl::InvalidArgumentError(StrCat(field, " names layer ", layer, ", must be in [0, ", layers, ")"));
  }
  return absl::OkStatus();
}

// Which layers `request.layers` names, [layers]; all false where it is empty.
absl::StatusOr<std::vector<bool>> NamedLayers(const GatingRequest& request, int layers) {
  std::vector<bool> named(layers, false);
  for (const int layer : request.layers) {
    GH_RETURN_IF_ERROR(CheckLayer("layers", layer, layers));
    if (named[layer]) return absl::InvalidArgumentError(StrCat("layers names layer ", layer, " twice"));
    named[layer] = true;
  }
  return named;
}

absl::Status CheckThresholds(const GatingRequest& request, const std::vector<bool>& named) {
  if (request.threshold.has_value()) GH_RETURN_IF_ERROR(CheckThreshold("threshold", *request.threshold));
  if (!request.layer_thresholds.empty() && request.mode != GatingMode::kGated) {
    return absl::InvalidArgumentError("layer_thresholds is only for gated mode");
  }
  for (const auto& [layer, threshold] : request.layer_thresholds) {
    GH_RETURN_IF_ERROR(CheckLayer("layer_thresholds", layer, static_cast<int>(named.size())));
    GH_RETURN_IF_ERROR(CheckThreshold(StrCat("layer_thresholds[", layer, "]"), threshold));
    if (!request.layers.empty() && !named[layer]) {
      return absl::InvalidArgumentError(StrCat("layer_thresholds names layer ", layer, ", which is not in layers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

RoutingPolicy RoutingPolicy::Full(const ModelInfo& model, std::shared_ptr<const Calibration> calibration) {
  RoutingPolicy policy;
  policy.rules_.assign(model.layers, Rule::kFull);
  policy.thresholds_.assign(model.layers, kDefaultThreshold);
  if (calibration != nullptr) policy.sink_positions_ = calibration->info().sink_positions;
  policy.calibration_ = std::move(calibration);
  return policy;
}

absl::StatusOr<RoutingPolicy> RoutingPolicy::Create(const GatingRequest& request, const ModelInfo& model,
                                                    std::shared_ptr<const Calibration> calibration) {
  GH_ASSIGN_OR_RETURN(const std::vector<bool> named, NamedLayers(request, model.layers));
  GH_RETURN_IF_ERROR(CheckThresholds(request, named));
  RoutingPolicy policy = Full(model, std::move(calibration));
  if (request.mode == GatingMode::kFull) return policy;
  if (policy.calibration_ == nullptr) {
    return absl::FailedPreconditionError("the model has no calibration, which linear and gated modes need");
  }
  const CalibrationInfo& info = policy.calibration_->info();
  if (static_cast<int>(info.layers.size()) != model.layers) {
    return absl::FailedPreconditionError(
        StrCat("the calibration has ", info.layers.size(), " layers, the model has ", model.layers));
  }

  bool any_chosen = false;
  for (int layer = 0; layer < model.layers; ++layer) {
    const auto own_threshold = request.layer_thresholds.find(layer);
    const bool has_own_threshold = own_threshold != request.layer_thresholds.end();
    bool chosen = named[layer];
    if (request.layers.empty()) {
      chosen = request.mode == GatingMode::kLinear || info.layers[layer].gateable || has_own_threshold;
    }
    if (!chosen) continue;
    any_chosen = true;
    if (request.mode == GatingMode::kLinear) {
      policy.rules_[layer] = Rule::kLinear;
    } else {
      const float threshold = has_own_threshold ? own_threshold->second : request.threshold.value_or(kDefaultThreshold);
      policy.thresholds_[layer] = threshold;
      // No probability exceeds 1, so the gate need not be asked.
      policy.rules_[layer] = threshold >= 1 ? Rule::kFull : Rule::kGated;
    }
    if (policy.rules_[layer] != Rule::kFull) policy.all_full_ = false;
  }
  if (!any_chosen) policy.notes_.emplace_back("no layer is gateable: ran in full");
  return policy;
}

}  // namespace gatehouse
