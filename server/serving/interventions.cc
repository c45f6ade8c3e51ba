#include "server/serving/interventions.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxCaptures = 16;
constexpr size_t kMaxCapturePositions = 4096;
// What one row may capture: more than a reader's outbox holds, but bounded.
constexpr int64_t kRowBytes = int64_t{32} << 20;

std::string_view Name(ActivationSite site) {
  switch (site) {
    case ActivationSite::kResidualPre:
      return "RESIDUAL_PRE";
    case ActivationSite::kAttentionOut:
      return "ATTENTION_OUT";
    case ActivationSite::kMlpIn:
      return "MLP_IN";
    case ActivationSite::kNeurons:
      return "NEURONS";
    case ActivationSite::kMlpOut:
      return "MLP_OUT";
    case ActivationSite::kResidualPost:
      return "RESIDUAL_POST";
  }
  return "";
}

absl::Status CheckPositions(const std::string& field, const std::vector<int>& list, int64_t positions) {
  for (const int position : list) {
    if (position < positions) continue;
    return absl::InvalidArgumentError(
        StrCat(field, ".positions names position ", position, ", must be in [0, ", positions, ")"));
  }
  return absl::OkStatus();
}

// The layers that a capture means, in order.
absl::StatusOr<std::vector<int>> LayersOf(const std::string& field, const ActivationCapture& capture, int layers) {
  std::vector<int> all(layers);
  std::iota(all.begin(), all.end(), 0);
  if (capture.layers.empty()) return all;
  std::set<int> seen;
  for (const int layer : capture.layers) {
    if (!(layer >= 0 && layer < layers)) {
      return WithReason(
          absl::InvalidArgumentError(StrCat(field, ".layers names layer ", layer, ", must be in [0, ", layers, ")")),
          reason::kLayerOutOfRange);
    }
    if (!seen.insert(layer).second) {
      return absl::InvalidArgumentError(StrCat(field, ".layers names layer ", layer, " twice"));
    }
  }
  return std::vector<int>(seen.begin(), seen.end());
}

absl::StatusOr<std::vector<int>> Ascending(const std::string& field, std::vector<int> list) {
  if (list.size() > kMaxCapturePositions) {
    return absl::InvalidArgumentError(
        StrCat(field, ".positions has ", list.size(), " entries, at most ", kMaxCapturePositions, " are allowed"));
  }
  std::sort(list.begin(), list.end());
  const auto twice = std::adjacent_find(list.begin(), list.end());
  if (twice == list.end()) return list;
  return absl::InvalidArgumentError(StrCat(field, ".positions names position ", *twice, " twice"));
}

bool LeavesNoNeurons(const Intervention& intervention) {
  const auto* force = std::get_if<ForcePath>(&intervention.change);
  return std::holds_alternative<ZeroMlp>(intervention.change) || (force != nullptr && force->path != MlpPath::kFull);
}

// Neurons can be captured only where the layer's MLP runs.
absl::Status CheckNeurons(const std::string& field, const CaptureSite& capture, const InterventionPlan* plan) {
  if (plan == nullptr || capture.site != ActivationSite::kNeurons) return absl::OkStatus();
  for (const Intervention* const intervention : plan->at(capture.layer)) {
    if (!LeavesNoNeurons(*intervention)) continue;
    std::vector<int> both;
    std::set_intersection(capture.positions.begin(), capture.positions.end(), intervention->positions.begin(),
                          intervention->positions.end(), std::back_inserter(both));
    if (both.empty() && !capture.positions.empty() && !intervention->positions.empty()) continue;
    return absl::InvalidArgumentError(
        StrCat(field, " wants neurons of layer ", capture.layer, ", which an intervention leaves without any"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CaptureSite>> ResolveCaptures(const std::vector<ActivationCapture>& captures,
                                                         const InterventionPlan* plan, const ModelInfo& model,
                                                         int64_t positions) {
  if (captures.size() > kMaxCaptures) {
    return absl::InvalidArgumentError(
        StrCat("captures has ", captures.size(), " entries, at most ", kMaxCaptures, " are allowed"));
  }
  std::vector<CaptureSite> sites;
  std::set<std::pair<ActivationSite, int>> seen;
  for (size_t i = 0; i < captures.size(); ++i) {
    const std::string field = StrCat("captures[", i, "]");
    GH_RETURN_IF_ERROR(CheckPositions(field, captures[i].positions, positions));
    GH_ASSIGN_OR_RETURN(const std::vector<int> ascending, Ascending(field, captures[i].positions));
    GH_ASSIGN_OR_RETURN(const std::vector<int> layers, LayersOf(field, captures[i], model.layers));
    for (const int layer : layers) {
      if (!seen.insert({captures[i].site, layer}).second) {
        return absl::InvalidArgumentError(
            StrCat(field, " names ", Name(captures[i].site), " of layer ", layer, ", as one before it does"));
      }
      sites.push_back({.layer = layer, .site = captures[i].site, .positions = ascending});
      GH_RETURN_IF_ERROR(CheckNeurons(field, sites.back(), plan));
    }
  }
  return sites;
}

}  // namespace

void CallInterventions::Apply(Row& row) const {
  row.interventions = plan.get();
  row.captures = captures;
}

std::vector<Activations> CallInterventions::Take(std::vector<CapturedSite> captured, const ModelInfo& model) const {
  std::vector<Activations> activations;
  for (size_t i = 0; i < std::min(captured.size(), captures.size()); ++i) {
    if (captured[i].positions.empty()) continue;
    activations.push_back({.layer = captures[i].layer,
                           .site = captures[i].site,
                           .width = SiteWidth(captures[i].site, model),
                           .positions = std::move(captured[i].positions),
                           .values = std::move(captured[i].values)});
  }
  return activations;
}

absl::StatusOr<CallInterventions> ResolveInterventions(std::vector<Intervention> interventions,
                                                       const std::vector<ActivationCapture>& captures,
                                                       const RoutingPolicy& policy, const ModelInfo& model,
                                                       int64_t positions) {
  CallInterventions resolved;
  resolved.most_positions = std::numeric_limits<int>::max();
  if (!interventions.empty()) {
    for (size_t i = 0; i < interventions.size(); ++i) {
      GH_RETURN_IF_ERROR(CheckPositions(StrCat("interventions[", i, "]"), interventions[i].positions, positions));
    }
    GH_ASSIGN_OR_RETURN(resolved.plan, InterventionPlan::Create(std::move(interventions), model, policy.calibration()));
  }
  GH_ASSIGN_OR_RETURN(resolved.captures, ResolveCaptures(captures, resolved.plan.get(), model, positions));
  int64_t bytes = 0;
  for (const CaptureSite& site : resolved.captures) bytes += int64_t{4} * SiteWidth(site.site, model);
  if (bytes > 0) resolved.most_positions = static_cast<int>(std::clamp<int64_t>(kRowBytes / bytes, 1, 1 << 20));
  if (policy.all_full()) return resolved;
  if (resolved.plan != nullptr) resolved.notes = resolved.plan->notes();
  for (const CaptureSite& site : resolved.captures) {
    if (site.site != ActivationSite::kNeurons) continue;
    resolved.notes.push_back(StrCat("layer ", site.layer, " ran in full where its neurons were captured"));
  }
  return resolved;
}

}  // namespace gatehouse
