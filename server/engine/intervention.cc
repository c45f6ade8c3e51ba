#include "server/engine/intervention.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kMostInterventions = 64;
constexpr size_t kMostPositions = 4096;
constexpr size_t kMostNeurons = 4096;
constexpr size_t kMostPatchValues = size_t{1} << 20;

absl::Status Invalid(std::string_view field, std::string_view problem) {
  return absl::InvalidArgumentError(StrCat(field, " ", problem));
}

// Each in [0, end), each once, not more than `most`; `what` is what one of them is.
absl::Status CheckDistinct(std::string_view field, std::string_view what, std::vector<int> values, int64_t end,
                           size_t most) {
  if (values.size() > most) {
    return Invalid(field, StrCat("has ", values.size(), " entries, at most ", most, " are allowed"));
  }
  for (const int value : values) {
    if (!(value >= 0 && value < end)) {
      return Invalid(field, StrCat("names ", what, " ", value, ", must be in [0, ", end, ")"));
    }
  }
  std::sort(values.begin(), values.end());
  const auto twice = std::adjacent_find(values.begin(), values.end());
  if (twice != values.end()) return Invalid(field, StrCat("names ", what, " ", *twice, " twice"));
  return absl::OkStatus();
}

// Checks one change; `field` is "interventions[2]".
struct ChangeChecks {
  const std::string& field;
  const Intervention& intervention;
  const ModelInfo& model;
  const Calibration* calibration;

  absl::Status operator()(const NeuronChange& change) const {
    const std::string neurons = StrCat(field, ".neurons");
    if (change.neurons.empty()) return Invalid(neurons, "names no neuron");
    GH_RETURN_IF_ERROR(CheckDistinct(neurons, "neuron", change.neurons, model.d_mlp, kMostNeurons));
    if (change.kind != NeuronChange::Kind::kMean) {
      if (std::isfinite(change.value)) return absl::OkStatus();
      return Invalid(StrCat(field, change.kind == NeuronChange::Kind::kScale ? ".scale" : ".set"), "is not finite");
    }
    return ForLayers("mean activations (a new calibration has them)", ".neurons.mean",
                     [](const LayerCalibration& layer) { return layer.neuron_means; });
  }
  absl::Status operator()(const ZeroMlp&) const { return absl::OkStatus(); }
  absl::Status operator()(const ForcePath& force) const {
    if (force.path == MlpPath::kLinear) {
      return ForLayers("surrogate", ".force_path", [](const LayerCalibration&) { return true; });
    }
    if (force.path == MlpPath::kLadder) {
      return ForLayers("ladder", ".force_path", [](const LayerCalibration& layer) { return layer.ladder_neurons > 0; });
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const Patch& patch) const {
    const std::string values = StrCat(field, ".patch.values");
    const size_t width = static_cast<size_t>(SiteWidth(patch.site, model));
    const size_t all = width * intervention.positions.size();
    if (patch.values.size() != width && patch.values.size() != all) {
      return Invalid(values,
                     StrCat("has ", patch.values.size(), " entries, must have ", width, ", the site's width",
                            intervention.positions.empty() ? "" : StrCat(", or ", all, ", one vector a position")));
    }
    for (const float value : patch.values) {
      if (!std::isfinite(value)) return Invalid(values, "holds a number that is not finite");
    }
    return absl::OkStatus();
  }

  // The calibration must have what the change needs in each of its layers.
  template <typename Has>
  absl::Status ForLayers(std::string_view what, std::string_view subfield, const Has& has) const {
    const std::string needs = StrCat(field, subfield, " needs a calibration");
    if (calibration == nullptr) {
      return WithReason(absl::FailedPreconditionError(StrCat(needs, ", and the model has none")),
                        reason::kNotCalibrated);
    }
    for (const int layer : intervention.layers) {
      if (layer < static_cast<int>(calibration->info().layers.size()) && has(calibration->info().layers[layer]))
        continue;
      return WithReason(
          absl::FailedPreconditionError(StrCat(needs, " that has, in layer ", layer, ", ", what, "; this one has not")),
          reason::kNotCalibrated);
    }
    return absl::OkStatus();
  }
};

absl::Status CheckOne(const std::string& field, const Intervention& intervention, const ModelInfo& model,
                      const Calibration* calibration) {
  const std::string layers = StrCat(field, ".layers"), positions = StrCat(field, ".positions");
  if (intervention.layers.empty()) return Invalid(layers, "names no layer");
  for (const int layer : intervention.layers) {
    if (layer >= 0 && layer < model.layers) continue;
    return WithReason(Invalid(layers, StrCat("names layer ", layer, ", must be in [0, ", model.layers, ")")),
                      reason::kLayerOutOfRange);
  }
  GH_RETURN_IF_ERROR(CheckDistinct(layers, "layer", intervention.layers, model.layers, model.layers));
  GH_RETURN_IF_ERROR(CheckDistinct(positions, "position", intervention.positions, int64_t{1} << 31, kMostPositions));
  return std::visit(ChangeChecks{field, intervention, model, calibration}, intervention.change);
}

// Sorts the positions, and what is there one a position with them.
void Sort(Intervention& intervention, const ModelInfo& model) {
  std::vector<int>& positions = intervention.positions;
  if (std::is_sorted(positions.begin(), positions.end())) return;
  std::vector<size_t> order(positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return positions[a] < positions[b]; });
  std::sort(positions.begin(), positions.end());
  auto* const patch = std::get_if<Patch>(&intervention.change);
  if (patch == nullptr) return;
  const size_t width = static_cast<size_t>(SiteWidth(patch->site, model));
  if (patch->values.size() != width * order.size()) return;
  std::vector<float> sorted;
  sorted.reserve(patch->values.size());
  for (const size_t entry : order) {
    const auto begin = patch->values.begin() + static_cast<ptrdiff_t>(entry * width);
    sorted.insert(sorted.end(), begin, begin + static_cast<ptrdiff_t>(width));
  }
  patch->values = std::move(sorted);
}

bool ChangesNeurons(const Intervention& intervention) {
  if (const auto* patch = std::get_if<Patch>(&intervention.change)) return patch->site == ActivationSite::kNeurons;
  return std::holds_alternative<NeuronChange>(intervention.change);
}

// Whether it takes the neurons away.
bool LeavesNoNeurons(const Intervention& intervention) {
  const auto* force = std::get_if<ForcePath>(&intervention.change);
  return std::holds_alternative<ZeroMlp>(intervention.change) || (force != nullptr && force->path != MlpPath::kFull);
}

// Both sorted; an empty list means all.
bool Overlap(const std::vector<int>& a, const std::vector<int>& b) {
  if (a.empty() || b.empty()) return true;
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return !both.empty();
}

// Neurons cannot be changed where they do not exist.
absl::Status CheckTogether(std::span<const Intervention> interventions) {
  for (size_t i = 0; i < interventions.size(); ++i) {
    if (!ChangesNeurons(interventions[i])) continue;
    for (size_t j = 0; j < interventions.size(); ++j) {
      if (!LeavesNoNeurons(interventions[j]) || !Overlap(interventions[i].positions, interventions[j].positions))
        continue;
      for (const int layer : interventions[i].layers) {
        const std::vector<int>& others = interventions[j].layers;
        if (std::find(others.begin(), others.end(), layer) == others.end()) continue;
        return Invalid(StrCat("interventions[", i, "]"),
                       StrCat("changes neurons of layer ", layer, ", which interventions[", j, "] leaves without any"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

int SiteWidth(ActivationSite site, const ModelInfo& model) {
  return site == ActivationSite::kNeurons ? model.d_mlp : model.d_model;
}

bool InterventionPlan::NeedCalibration(std::span<const Intervention> interventions) {
  return std::any_of(interventions.begin(), interventions.end(), [](const Intervention& intervention) {
    const auto* neurons = std::get_if<NeuronChange>(&intervention.change);
    if (neurons != nullptr) return neurons->kind == NeuronChange::Kind::kMean;
    const auto* force = std::get_if<ForcePath>(&intervention.change);
    return force != nullptr && (force->path == MlpPath::kLinear || force->path == MlpPath::kLadder);
  });
}

absl::StatusOr<std::shared_ptr<const InterventionPlan>> InterventionPlan::Create(
    std::vector<Intervention> interventions, const ModelInfo& model, std::shared_ptr<const Calibration> calibration) {
  if (interventions.size() > kMostInterventions) {
    return Invalid("interventions",
                   StrCat("has ", interventions.size(), " entries, at most ", kMostInterventions, " are allowed"));
  }
  size_t patch_values = 0;
  for (size_t i = 0; i < interventions.size(); ++i) {
    GH_RETURN_IF_ERROR(CheckOne(StrCat("interventions[", i, "]"), interventions[i], model, calibration.get()));
    const auto* patch = std::get_if<Patch>(&interventions[i].change);
    if (patch != nullptr) patch_values += patch->values.size();
    Sort(interventions[i], model);
  }
  if (patch_values > kMostPatchValues) {
    return Invalid("interventions",
                   StrCat("patch ", patch_values, " values, at most ", kMostPatchValues, " are allowed"));
  }
  GH_RETURN_IF_ERROR(CheckTogether(interventions));

  const auto plan = std::make_shared<InterventionPlan>();
  plan->interventions_ = std::move(interventions);
  plan->calibration_ = std::move(calibration);
  plan->by_layer_.resize(model.layers);
  std::vector<int> in_full;
  for (const Intervention& intervention : plan->interventions_) {
    for (const int layer : intervention.layers) plan->by_layer_[layer].push_back(&intervention);
    if (ChangesNeurons(intervention))
      in_full.insert(in_full.end(), intervention.layers.begin(), intervention.layers.end());
  }
  std::sort(in_full.begin(), in_full.end());
  in_full.erase(std::unique(in_full.begin(), in_full.end()), in_full.end());
  for (const int layer : in_full) {
    plan->notes_.push_back(StrCat("layer ", layer, " ran in full where its neurons were changed"));
  }
  return std::shared_ptr<const InterventionPlan>(plan);
}

}  // namespace gatehouse
