#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/translate.h"

namespace gatehouse {
namespace {

static_assert(std::endian::native == std::endian::little, "activations are sent as they lie in memory");

v1::ActivationSite SiteToProto(ActivationSite site) {
  return static_cast<v1::ActivationSite>(static_cast<int>(site) + 1);
}
static_assert(static_cast<int>(ActivationSite::kResidualPre) + 1 == v1::ACTIVATION_SITE_RESIDUAL_PRE);
static_assert(static_cast<int>(ActivationSite::kAttentionOut) + 1 == v1::ACTIVATION_SITE_ATTENTION_OUT);
static_assert(static_cast<int>(ActivationSite::kMlpIn) + 1 == v1::ACTIVATION_SITE_MLP_IN);
static_assert(static_cast<int>(ActivationSite::kNeurons) + 1 == v1::ACTIVATION_SITE_NEURONS);
static_assert(static_cast<int>(ActivationSite::kMlpOut) + 1 == v1::ACTIVATION_SITE_MLP_OUT);
static_assert(static_cast<int>(ActivationSite::kResidualPost) + 1 == v1::ACTIVATION_SITE_RESIDUAL_POST);

absl::StatusOr<ActivationSite> SiteFromProto(v1::ActivationSite site, const std::string& field) {
  if (site < v1::ACTIVATION_SITE_RESIDUAL_PRE || site > v1::ACTIVATION_SITE_RESIDUAL_POST) {
    return absl::InvalidArgumentError(StrCat(field, site == v1::ACTIVATION_SITE_UNSPECIFIED
                                                        ? " is needed"
                                                        : StrCat(" has the unknown value ", static_cast<int>(site))));
  }
  return static_cast<ActivationSite>(static_cast<int>(site) - 1);
}

// Indices of any kind; no model has one that an int does not hold.
absl::StatusOr<std::vector<int>> Indices(const google::protobuf::RepeatedField<uint32_t>& protos,
                                         const std::string& field) {
  std::vector<int> values;
  values.reserve(protos.size());
  for (const uint32_t value : protos) {
    if (value > static_cast<uint32_t>(std::numeric_limits<int>::max())) {
      return absl::InvalidArgumentError(StrCat(field, " names ", value, ", must be in [0, 2147483648)"));
    }
    values.push_back(static_cast<int>(value));
  }
  return values;
}

absl::StatusOr<std::vector<int>> Layers(const google::protobuf::RepeatedField<uint32_t>& protos,
                                        const std::string& field) {
  std::vector<int> layers;
  for (const uint32_t layer : protos) {
    GH_ASSIGN_OR_RETURN(layers.emplace_back(), LayerFromProto(layer, field));
  }
  return layers;
}

absl::StatusOr<NeuronChange> Neurons(const v1::NeuronChange& proto, const std::string& field) {
  NeuronChange change;
  GH_ASSIGN_OR_RETURN(change.neurons, Indices(proto.neurons(), StrCat(field, ".neurons")));
  switch (proto.value_case()) {
    case v1::NeuronChange::kScale:
      change.kind = NeuronChange::Kind::kScale;
      change.value = proto.scale();
      return change;
    case v1::NeuronChange::kMean:
      change.kind = NeuronChange::Kind::kMean;
      return change;
    case v1::NeuronChange::kSet:
      change.kind = NeuronChange::Kind::kSet;
      change.value = proto.set();
      return change;
    case v1::NeuronChange::VALUE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(StrCat(field, ".neurons needs one of scale, mean and set"));
}

absl::StatusOr<Intervention> One(const v1::Intervention& proto, const std::string& field) {
  Intervention intervention;
  GH_ASSIGN_OR_RETURN(intervention.layers, Layers(proto.layers(), StrCat(field, ".layers")));
  GH_ASSIGN_OR_RETURN(intervention.positions, Indices(proto.positions(), StrCat(field, ".positions")));
  switch (proto.change_case()) {
    case v1::Intervention::kNeurons: {
      GH_ASSIGN_OR_RETURN(intervention.change, Neurons(proto.neurons(), field));
      return intervention;
    }
    case v1::Intervention::kZeroMlp:
      intervention.change = ZeroMlp{};
      return intervention;
    case v1::Intervention::kForcePath: {
      GH_ASSIGN_OR_RETURN(const MlpPath path, PathFromProto(proto.force_path(), StrCat(field, ".force_path")));
      intervention.change = ForcePath{path};
      return intervention;
    }
    case v1::Intervention::kPatch: {
      Patch patch;
      GH_ASSIGN_OR_RETURN(patch.site, SiteFromProto(proto.patch().site(), StrCat(field, ".patch.site")));
      patch.values.assign(proto.patch().values().begin(), proto.patch().values().end());
      intervention.change = std::move(patch);
      return intervention;
    }
    case v1::Intervention::CHANGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(StrCat(field, " needs one of neurons, zero_mlp, force_path and patch"));
}

}  // namespace

absl::StatusOr<MlpPath> PathFromProto(v1::MlpPath path, std::string_view field) {
  switch (path) {
    case v1::MLP_PATH_FULL:
      return MlpPath::kFull;
    case v1::MLP_PATH_LINEAR:
      return MlpPath::kLinear;
    case v1::MLP_PATH_LADDER:
      return MlpPath::kLadder;
    case v1::MLP_PATH_SKIP:
      return MlpPath::kSkip;
    default:
      return absl::InvalidArgumentError(StrCat(field, " has the unknown value ", static_cast<int>(path)));
  }
}

absl::StatusOr<std::vector<Intervention>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::Intervention>& protos) {
  std::vector<Intervention> interventions;
  for (const v1::Intervention& proto : protos) {
    GH_ASSIGN_OR_RETURN(interventions.emplace_back(), One(proto, StrCat("interventions[", interventions.size(), "]")));
  }
  return interventions;
}

absl::StatusOr<std::vector<ActivationCapture>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::ActivationCapture>& protos) {
  std::vector<ActivationCapture> captures;
  for (const v1::ActivationCapture& proto : protos) {
    const std::string field = StrCat("captures[", captures.size(), "]");
    ActivationCapture& capture = captures.emplace_back();
    GH_ASSIGN_OR_RETURN(capture.layers, Layers(proto.layers(), StrCat(field, ".layers")));
    GH_ASSIGN_OR_RETURN(capture.site, SiteFromProto(proto.site(), StrCat(field, ".site")));
    GH_ASSIGN_OR_RETURN(capture.positions, Indices(proto.positions(), StrCat(field, ".positions")));
  }
  return captures;
}

v1::Activations ToProto(const Activations& activations, size_t begin, size_t count) {
  v1::Activations proto;
  proto.set_layer(static_cast<uint32_t>(activations.layer));
  proto.set_site(SiteToProto(activations.site));
  proto.set_width(static_cast<uint32_t>(activations.width));
  for (size_t i = begin; i < begin + count; ++i) {
    proto.add_positions(static_cast<uint32_t>(activations.positions[i]));
  }
  const size_t width = static_cast<size_t>(activations.width);
  const auto* const bytes = reinterpret_cast<const char*>(activations.values.data() + begin * width);
  proto.set_values(std::string(bytes, count * width * sizeof(float)));
  return proto;
}

}  // namespace gatehouse
