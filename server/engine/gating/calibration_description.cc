#include "server/engine/gating/calibration_description.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "gatehouse.calibration";
constexpr std::string_view kVersion = "1";
constexpr size_t kMostFindings = 64;

// The numbers of a layer, by their key.
struct NumberField {
  const char* key;
  double LayerCalibration::*member;
};
constexpr NumberField kLayerNumbers[] = {
    {"linear_cost", &LayerCalibration::linear_cost},
    {"linear_cost_with_sinks", &LayerCalibration::linear_cost_with_sinks},
    {"surrogate_r2", &LayerCalibration::surrogate_r2},
    {"surrogate_r2_with_sinks", &LayerCalibration::surrogate_r2_with_sinks},
    {"gate_linear_fraction", &LayerCalibration::gate_linear_fraction},
    {"gate_cost", &LayerCalibration::gate_cost},
    {"p25", &LayerCalibration::p25},
    {"p50", &LayerCalibration::p50},
    {"p70", &LayerCalibration::p70},
    {"p95", &LayerCalibration::p95},
    {"consensus_null", &LayerCalibration::consensus_null},
    {"exception_null", &LayerCalibration::exception_null},
    {"gateway_null", &LayerCalibration::gateway_null},
    {"consensus_random", &LayerCalibration::consensus_random},
    {"exception_random", &LayerCalibration::exception_random},
    {"gateway_random", &LayerCalibration::gateway_random},
};

struct FindingsField {
  const char* key;
  std::vector<NeuronFinding> LayerCalibration::*member;
};
constexpr FindingsField kLayerFindings[] = {
    {"consensus", &LayerCalibration::consensus},
    {"exception", &LayerCalibration::exception},
    {"gateway", &LayerCalibration::gateway},
};

Json FindingsJson(const std::vector<NeuronFinding>& findings) {
  Json list = Json::array();
  for (const NeuronFinding& finding : findings) {
    list.push_back(
        {{"neuron", finding.neuron}, {"base_rate", finding.base_rate}, {"rate_difference", finding.rate_difference}});
  }
  return list;
}

Json LayerJson(const LayerCalibration& layer) {
  Json object = {{"gateable", layer.gateable}};
  for (const NumberField& field : kLayerNumbers) object[field.key] = layer.*field.member;
  for (const FindingsField& field : kLayerFindings) object[field.key] = FindingsJson(layer.*field.member);
  return object;
}

// A JSON object that is read key by key; what it was not asked for is an error.  `where`
// names it in messages.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  absl::Status Error(std::string_view key, std::string_view message) const {
    return absl::InvalidArgumentError(StrCat(where_, key, " ", message));
  }

  bool Has(const char* key) {
    known_.insert(key);
    return object_.contains(key);
  }

  // Each leaves `value` as it is where the key is absent.
  absl::Status Read(const char* key, double low, double high, double& value) {
    if (!Has(key)) return absl::OkStatus();
    const Json& found = object_[key];
    if (!found.is_number()) return Error(key, "is not a number");
    const double number = found.get<double>();
    if (!(number >= low && number <= high)) {
      return Error(key, StrCat("is ", number, ", outside [", low, ", ", high, "]"));
    }
    value = number;
    return absl::OkStatus();
  }

  template <typename Integer>
  absl::Status ReadInteger(const char* key, int64_t low, int64_t high, Integer& value) {
    if (!Has(key)) return absl::OkStatus();
    const Json& found = object_[key];
    if (!found.is_number_integer()) return Error(key, "is not an integer");
    const bool too_large = found.is_number_unsigned() && found.get<uint64_t>() > static_cast<uint64_t>(high);
    if (too_large || found.get<int64_t>() < low || found.get<int64_t>() > high) {
      return Error(key, StrCat("is outside [", low, ", ", high, "]"));
    }
    value = static_cast<Integer>(found.get<int64_t>());
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, std::string& value) {
    if (!Has(key)) return absl::OkStatus();
    if (!object_[key].is_string()) return Error(key, "is not a string");
    value = object_[key].get<std::string>();
    return absl::OkStatus();
  }

  absl::Status Read(const char* key, bool& value) {
    if (!Has(key)) return absl::OkStatus();
    if (!object_[key].is_boolean()) return Error(key, "is not true or false");
    value = object_[key].get<bool>();
    return absl::OkStatus();
  }

  absl::Status CheckNothingElse() const {
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key)) return Error(key, "is not a key of this format");
    }
    return absl::OkStatus();
  }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> known_;
};

absl::Status ReadFindings(const Json& list, const std::string& where, std::vector<NeuronFinding>& findings) {
  const auto error = [&](std::string_view message) { return absl::InvalidArgumentError(StrCat(where, " ", message)); };
  if (!list.is_array() || list.size() > kMostFindings) return error("is not a list of at most 64 neurons");
  std::set<int> seen;
  for (const Json& item : list) {
    if (!item.is_object()) return error("has an entry that is not an object");
    Reader reader(item, StrCat(where, ": "));
    NeuronFinding finding{-1, 0, 0};
    GH_RETURN_IF_ERROR(reader.ReadInteger("neuron", 0, std::numeric_limits<int32_t>::max(), finding.neuron));
    GH_RETURN_IF_ERROR(reader.Read("base_rate", 0, 1, finding.base_rate));
    GH_RETURN_IF_ERROR(reader.Read("rate_difference", -1, 1, finding.rate_difference));
    GH_RETURN_IF_ERROR(reader.CheckNothingElse());
    if (finding.neuron < 0) return error("has an entry without neuron");
    if (!seen.insert(finding.neuron).second) return error(StrCat("names neuron ", finding.neuron, " twice"));
    findings.push_back(finding);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerCalibration> ReadLayer(const Json& object, int index, double cost_limit) {
  const std::string where = StrCat("calibration.layers[", index, "]");
  if (!object.is_object()) return absl::InvalidArgumentError(StrCat(where, " is not an object"));
  constexpr double kAny = std::numeric_limits<double>::max();
  Reader reader(object, StrCat(where, "."));
  LayerCalibration layer;
  for (const NumberField& field : kLayerNumbers) {
    GH_RETURN_IF_ERROR(reader.Read(field.key, -kAny, kAny, layer.*field.member));
  }
  for (const FindingsField& field : kLayerFindings) {
    if (!reader.Has(field.key)) continue;
    GH_RETURN_IF_ERROR(ReadFindings(object[field.key], StrCat(where, ".", field.key), layer.*field.member));
  }
  // Whoever leaves both out wrote the gate by hand and wants it used.
  layer.gateable = !reader.Has("linear_cost") || layer.linear_cost <= cost_limit;
  GH_RETURN_IF_ERROR(reader.Read("gateable", layer.gateable));
  GH_RETURN_IF_ERROR(reader.CheckNothingElse());
  return layer;
}

absl::Status ReadLayers(const Json& list, int layers, CalibrationInfo& info) {
  if (!list.is_array()) return absl::InvalidArgumentError("calibration.layers is not a list");
  if (list.size() != static_cast<size_t>(layers)) {
    return absl::InvalidArgumentError(
        StrCat("calibration.layers has ", list.size(), " entries, but the file's tensors are for ", layers, " layers"));
  }
  for (int i = 0; i < layers; ++i) {
    GH_ASSIGN_OR_RETURN(info.layers[i], ReadLayer(list[i], i, info.gateable_cost_limit));
  }
  return absl::OkStatus();
}

absl::Status ReadDescription(const Json& object, int layers, CalibrationInfo& info) {
  if (!object.is_object()) return absl::InvalidArgumentError("calibration is not a JSON object");
  constexpr int64_t kMost = int64_t{1} << 53;
  constexpr double kAny = std::numeric_limits<double>::max();
  Reader reader(object, "calibration.");
  GH_RETURN_IF_ERROR(reader.Read("name", info.name));
  GH_RETURN_IF_ERROR(reader.Read("created", info.created));
  GH_RETURN_IF_ERROR(reader.Read("corpus", info.corpus));
  GH_RETURN_IF_ERROR(reader.Read("corpus_sha256", info.corpus_sha256));
  GH_RETURN_IF_ERROR(reader.ReadInteger("fit_tokens", 0, kMost, info.fit_tokens));
  GH_RETURN_IF_ERROR(reader.ReadInteger("gate_tokens", 0, kMost, info.gate_tokens));
  GH_RETURN_IF_ERROR(reader.ReadInteger("select_tokens", 0, kMost, info.select_tokens));
  GH_RETURN_IF_ERROR(reader.ReadInteger("report_tokens", 0, kMost, info.report_tokens));
  GH_RETURN_IF_ERROR(reader.ReadInteger("window_tokens", 0, std::numeric_limits<int32_t>::max(), info.window_tokens));
  GH_RETURN_IF_ERROR(reader.ReadInteger("sink_positions", 0, std::numeric_limits<int32_t>::max(), info.sink_positions));
  GH_RETURN_IF_ERROR(reader.Read("gateable_cost_limit", 0, kAny, info.gateable_cost_limit));
  GH_RETURN_IF_ERROR(reader.Read("ridge", 0, kAny, info.ridge));
  GH_RETURN_IF_ERROR(reader.Read("dtype", info.dtype));
  if (reader.Has("seed")) {
    if (!object["seed"].is_number_unsigned()) return reader.Error("seed", "is not a whole number from 0 to 2^64 - 1");
    info.seed = object["seed"].get<uint64_t>();
  }
  if (reader.Has("layers")) GH_RETURN_IF_ERROR(ReadLayers(object["layers"], layers, info));
  return reader.CheckNothingElse();
}

absl::StatusOr<std::string> Required(const std::map<std::string, std::string>& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return absl::InvalidArgumentError(StrCat("metadata key ", key, " is missing"));
  return found->second;
}

}  // namespace

std::map<std::string, std::string> CalibrationMetadata(const CalibrationInfo& info) {
  Json object = {{"name", info.name},
                 {"created", info.created},
                 {"corpus", info.corpus},
                 {"corpus_sha256", info.corpus_sha256},
                 {"fit_tokens", info.fit_tokens},
                 {"gate_tokens", info.gate_tokens},
                 {"select_tokens", info.select_tokens},
                 {"report_tokens", info.report_tokens},
                 {"window_tokens", info.window_tokens},
                 {"sink_positions", info.sink_positions},
                 {"gateable_cost_limit", info.gateable_cost_limit},
                 {"ridge", info.ridge},
                 {"seed", info.seed},
                 {"dtype", info.dtype},
                 {"layers", Json::array()}};
  for (const LayerCalibration& layer : info.layers) object["layers"].push_back(LayerJson(layer));
  return {{"format", std::string(kFormat)},
          {"version", std::string(kVersion)},
          {"model_fingerprint", info.model_fingerprint},
          {"calibration", object.dump(-1, ' ', false, Json::error_handler_t::replace)}};
}

absl::StatusOr<CalibrationInfo> ParseCalibrationMetadata(const std::map<std::string, std::string>& metadata,
                                                         int layers) {
  GH_ASSIGN_OR_RETURN(const std::string format, Required(metadata, "format"));
  if (format != kFormat) {
    return absl::InvalidArgumentError(StrCat("metadata key format is '", format, "', not '", kFormat, "'"));
  }
  GH_ASSIGN_OR_RETURN(const std::string version, Required(metadata, "version"));
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        StrCat("metadata key version is '", version, "'; this program reads version ", kVersion));
  }
  CalibrationInfo info;
  GH_ASSIGN_OR_RETURN(info.model_fingerprint, Required(metadata, "model_fingerprint"));
  info.layers.resize(layers);
  for (LayerCalibration& layer : info.layers) layer.gateable = true;
  const auto description = metadata.find("calibration");
  if (description == metadata.end()) return info;
  const Json object = Json::parse(description->second, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return absl::InvalidArgumentError("metadata key calibration is not JSON");
  GH_RETURN_IF_ERROR(ReadDescription(object, layers, info));
  return info;
}

}  // namespace gatehouse
