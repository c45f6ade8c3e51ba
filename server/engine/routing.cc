#include "server/engine/routing.h"

#include <utility>

#include "absl/status/status.h"
#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr float kDefaultThreshold = 0.5f;
// Thresholds that every probability exceeds, and none.
constexpr float kAlways = -1, kNever = 1;
constexpr int kMostQuorum = 64;

absl::Status CheckThreshold(std::string_view field, float threshold) {
  if (!(threshold >= 0 && threshold <= 1)) {
    return absl::InvalidArgumentError(StrCat(field, " is ", threshold, ", must be in [0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(std::string_view field, int layer, int layers) {
  if (!(layer >= 0 && layer < layers)) {
    return WithReason(
        absl::InvalidArgumentError(StrCat(field, " names layer ", layer, ", must be in [0, ", layers, ")")),
        reason::kLayerOutOfRange);
  }
  return absl::OkStatus();
}

absl::Status CheckGated(std::string_view field, const GatingRequest& request) {
  if (request.mode == GatingMode::kGated) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is only for gated mode"));
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
  if (request.ladder_threshold.has_value()) {
    GH_RETURN_IF_ERROR(CheckThreshold("ladder_threshold", *request.ladder_threshold));
    GH_RETURN_IF_ERROR(CheckGated("ladder_threshold", request));
  }
  if (!request.layer_thresholds.empty()) GH_RETURN_IF_ERROR(CheckGated("layer_thresholds", request));
  for (const auto& [layer, threshold] : request.layer_thresholds) {
    GH_RETURN_IF_ERROR(CheckLayer("layer_thresholds", layer, static_cast<int>(named.size())));
    GH_RETURN_IF_ERROR(CheckThreshold(StrCat("layer_thresholds[", layer, "]"), threshold));
    if (!request.layers.empty() && !named[layer]) {
      return absl::InvalidArgumentError(StrCat("layer_thresholds names layer ", layer, ", which is not in layers"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckQuorum(const GatingRequest& request) {
  if (request.mode != GatingMode::kQuorum) {
    if (request.quorum != 0) return absl::InvalidArgumentError("quorum is only for quorum mode");
    if (request.quorum_path != MlpPath::kLinear) {
      return absl::InvalidArgumentError("quorum_path is only for quorum mode");
    }
    return absl::OkStatus();
  }
  if (!(request.quorum >= 1 && request.quorum <= kMostQuorum)) {
    return absl::InvalidArgumentError(StrCat("quorum is ", request.quorum, ", must be in [1, ", kMostQuorum, "]"));
  }
  if (request.quorum_path != MlpPath::kLinear && request.quorum_path != MlpPath::kSkip) {
    return absl::InvalidArgumentError("quorum_path must be linear or skip");
  }
  return absl::OkStatus();
}

// An operating point stands alone.
absl::Status CheckOperatingPoint(const GatingRequest& request) {
  if (request.operating_point.empty()) return absl::OkStatus();
  GH_RETURN_IF_ERROR(CheckGated("operating_point", request));
  const auto excludes = [](std::string_view field) {
    return absl::InvalidArgumentError(StrCat("operating_point and ", field, " exclude each other"));
  };
  if (request.threshold.has_value()) return excludes("threshold");
  if (!request.layer_thresholds.empty()) return excludes("layer_thresholds");
  if (request.ladder_threshold.has_value()) return excludes("ladder_threshold");
  if (!request.layers.empty()) return excludes("layers");
  return absl::OkStatus();
}

bool HasQuorum(const GatingRequest& request, const LayerCalibration& layer) {
  return static_cast<int>(layer.consensus.size()) >= request.quorum;
}

// Whether a request that names no layers means this one.
bool IsDefault(const GatingRequest& request, const LayerCalibration& layer, bool has_own_threshold) {
  switch (request.mode) {
    case GatingMode::kFull:
      return false;
    case GatingMode::kLinear:
      return true;
    case GatingMode::kLadder:
      return layer.ladder_neurons > 0;
    case GatingMode::kGated:
      return layer.gateable || has_own_threshold;
    case GatingMode::kQuorum:
      return HasQuorum(request, layer);
  }
  return false;
}

// What a request does in a layer that it chose.
OperatingLayer ThresholdsOf(const GatingRequest& request, std::optional<float> own_threshold) {
  switch (request.mode) {
    case GatingMode::kFull:
      break;
    case GatingMode::kLinear:
      return {.linear_threshold = kAlways, .ladder_threshold = kNever};
    case GatingMode::kLadder:
      return {.linear_threshold = kNever, .ladder_threshold = kAlways};
    case GatingMode::kGated:
      return {.linear_threshold = own_threshold.value_or(request.threshold.value_or(kDefaultThreshold)),
              .ladder_threshold = request.ladder_threshold.value_or(kNever)};
    case GatingMode::kQuorum:
      break;
  }
  return {};
}

}  // namespace

RoutingPolicy RoutingPolicy::Full(const ModelInfo& model, std::shared_ptr<const Calibration> calibration) {
  RoutingPolicy policy;
  policy.rules_.assign(model.layers, Rule::kFull);
  policy.thresholds_.resize(model.layers);
  if (calibration != nullptr) policy.sink_positions_ = calibration->info().sink_positions;
  policy.calibration_ = std::move(calibration);
  return policy;
}

absl::StatusOr<RoutingPolicy> RoutingPolicy::Create(const GatingRequest& request, const ModelInfo& model,
                                                    std::shared_ptr<const Calibration> calibration) {
  GH_ASSIGN_OR_RETURN(const std::vector<bool> named, NamedLayers(request, model.layers));
  if (!request.layers.empty() && request.mode == GatingMode::kFull) {
    return absl::InvalidArgumentError("layers is not for full mode, which runs all in full");
  }
  GH_RETURN_IF_ERROR(CheckThresholds(request, named));
  GH_RETURN_IF_ERROR(CheckOperatingPoint(request));
  GH_RETURN_IF_ERROR(CheckQuorum(request));
  RoutingPolicy policy = Full(model, std::move(calibration));
  if (request.threshold.has_value() && request.mode != GatingMode::kGated) {
    policy.notes_.emplace_back("threshold is only for gated mode: not used");
  }
  if (request.mode == GatingMode::kFull) return policy;
  if (policy.calibration_ == nullptr) {
    return absl::FailedPreconditionError("the model has no calibration, which all modes but full need");
  }
  const CalibrationInfo& info = policy.calibration_->info();
  if (static_cast<int>(info.layers.size()) != model.layers) {
    return absl::FailedPreconditionError(
        StrCat("the calibration has ", info.layers.size(), " layers, the model has ", model.layers));
  }
  GH_RETURN_IF_ERROR(request.operating_point.empty() ? policy.Choose(request, named)
                                                     : policy.TakeOperatingPoint(request.operating_point));
  return policy;
}

absl::Status RoutingPolicy::Choose(const GatingRequest& request, const std::vector<bool>& named) {
  bool any_chosen = false, any_ladder = false;
  for (int layer = 0; layer < layers(); ++layer) {
    const LayerCalibration& calibrated = calibration_->info().layers[layer];
    std::optional<float> own_threshold;
    if (const auto own = request.layer_thresholds.find(layer); own != request.layer_thresholds.end()) {
      own_threshold = own->second;
    }
    const bool chosen =
        request.layers.empty() ? IsDefault(request, calibrated, own_threshold.has_value()) : named[layer];
    if (!chosen) continue;
    if (request.mode == GatingMode::kLadder && calibrated.ladder_neurons == 0) {
      return absl::InvalidArgumentError(StrCat("layers names layer ", layer, ", which has no ladder"));
    }
    if (request.mode == GatingMode::kQuorum && !HasQuorum(request, calibrated)) {
      return absl::InvalidArgumentError(StrCat("layers names layer ", layer, ", which has ",
                                               calibrated.consensus.size(),
                                               " consensus neurons, fewer than the quorum of ", request.quorum));
    }
    any_chosen = true;
    any_ladder |= calibrated.ladder_neurons > 0;
    if (request.mode == GatingMode::kQuorum) {
      rules_[layer] = Rule::kQuorum;
      all_full_ = false;
    } else {
      SetLayer(layer, ThresholdsOf(request, own_threshold));
    }
  }
  quorum_ = request.quorum;
  quorum_path_ = request.quorum_path;
  if (!any_chosen) {
    notes_.push_back(request.mode == GatingMode::kLadder ? "no layer has a ladder: ran in full"
                     : request.mode == GatingMode::kQuorum
                         ? StrCat("no layer has ", request.quorum, " consensus neurons: ran in full")
                         : "no layer is gateable: ran in full");
  } else if (request.ladder_threshold.has_value() && !any_ladder) {
    notes_.emplace_back("no chosen layer has a ladder: ran without");
  }
  return absl::OkStatus();
}

absl::Status RoutingPolicy::TakeOperatingPoint(const std::string& name) {
  std::string names;
  for (const OperatingPoint& point : calibration_->info().operating_points) {
    if (point.name != name) {
      names += StrCat(names.empty() ? "" : ", ", point.name);
      continue;
    }
    for (int layer = 0; layer < layers(); ++layer) SetLayer(layer, point.layers[layer]);
    return absl::OkStatus();
  }
  return WithReason(absl::NotFoundError(StrCat("the calibration has no such operating point; it has ",
                                               names.empty() ? "none" : StrCat("these: ", names))),
                    reason::kOperatingPointNotFound);
}

void RoutingPolicy::SetLayer(int layer, const OperatingLayer& thresholds) {
  OperatingLayer& set = thresholds_[layer];
  set = thresholds;
  if (calibration_->info().layers[layer].ladder_neurons == 0) set.ladder_threshold = kNever;
  // No probability exceeds 1 and every one exceeds a negative number: then the gate need not
  // be asked.
  if (set.linear_threshold < 0) {
    rules_[layer] = Rule::kLinear;
  } else if (set.linear_threshold < 1) {
    rules_[layer] = Rule::kGated;
  } else if (set.ladder_threshold < 0) {
    rules_[layer] = Rule::kLadder;
  } else {
    rules_[layer] = set.ladder_threshold < 1 ? Rule::kGated : Rule::kFull;
  }
  if (rules_[layer] != Rule::kFull) all_full_ = false;
}

}  // namespace gatehouse
