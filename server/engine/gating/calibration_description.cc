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
constexpr size_t kMostOperatingPoints = 64;
constexpr size_t kMostIngredients = 16;
constexpr size_t kMostText = 256;      // bytes of a label
constexpr size_t kMostPointName = 64;  // as of a calibration's

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

// The numbers of an operating point, by their key.
struct PointField {
  const char* key;
  double low, high;
  double OperatingPoint::*member;
};
constexpr double kAny = std::numeric_limits<double>::max();
constexpr PointField kPointNumbers[] = {
    {"budget", 0, 10, &OperatingPoint::budget},
    {"cost", -1, kAny, &OperatingPoint::cost},
    {"cost_low", -1, kAny, &OperatingPoint::cost_low},
    {"cost_high", -1, kAny, &OperatingPoint::cost_high},
    {"work_saved", -1, 1, &OperatingPoint::work_saved},
    {"linear_fraction", 0, 1, &OperatingPoint::linear_fraction},
    {"ladder_fraction", 0, 1, &OperatingPoint::ladder_fraction},
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

Json PointJson(const OperatingPoint& point) {
  Json object = {{"name", point.name}, {"layers", Json::array()}};
  for (const PointField& field : kPointNumbers) object[field.key] = point.*field.member;
  for (const OperatingLayer& layer : point.layers) {
    object["layers"].push_back(
        {{"linear_threshold", layer.linear_threshold}, {"ladder_threshold", layer.ladder_threshold}});
  }
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

  absl::Status Read(const char* key, std::string& value, size_t most = kMostText) {
    if (!Has(key)) return absl::OkStatus();
    if (!object_[key].is_string()) return Error(key, "is not a string");
    const auto& text = object_[key].get_ref<const std::string&>();
    if (text.size() > most) return Error(key, StrCat("has ", text.size(), " bytes, more than ", most));
    value = text;
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

absl::Status ReadThreshold(Reader& reader, const char* key, float& threshold) {
  double number = threshold;
  GH_RETURN_IF_ERROR(reader.Read(key, -1, 1, number));
  threshold = static_cast<float>(number);
  return absl::OkStatus();
}

absl::StatusOr<OperatingPoint> ReadPoint(const Json& object, const std::string& where, int layers) {
  if (!object.is_object()) return absl::InvalidArgumentError(StrCat(where, " is not an object"));
  Reader reader(object, StrCat(where, "."));
  OperatingPoint point;
  GH_RETURN_IF_ERROR(reader.Read("name", point.name, kMostPointName));
  if (point.name.empty()) return reader.Error("name", "is missing or empty");
  for (const PointField& field : kPointNumbers) {
    GH_RETURN_IF_ERROR(reader.Read(field.key, field.low, field.high, point.*field.member));
  }
  if (!reader.Has("layers") || !object["layers"].is_array() || object["layers"].size() != static_cast<size_t>(layers)) {
    return reader.Error("layers", StrCat("is not a list of ", layers, " objects, one a layer"));
  }
  for (const Json& item : object["layers"]) {
    const std::string entry = StrCat(where, ".layers[", point.layers.size(), "]");
    if (!item.is_object()) return absl::InvalidArgumentError(StrCat(entry, " is not an object"));
    Reader thresholds(item, StrCat(entry, "."));
    OperatingLayer& layer = point.layers.emplace_back();
    GH_RETURN_IF_ERROR(ReadThreshold(thresholds, "linear_threshold", layer.linear_threshold));
    GH_RETURN_IF_ERROR(ReadThreshold(thresholds, "ladder_threshold", layer.ladder_threshold));
    GH_RETURN_IF_ERROR(thresholds.CheckNothingElse());
  }
  GH_RETURN_IF_ERROR(reader.CheckNothingElse());
  return point;
}

absl::Status ReadPoints(const Json& list, int layers, CalibrationInfo& info) {
  const std::string where = "calibration.operating_points";
  if (!list.is_array() || list.size() > kMostOperatingPoints) {
    return absl::InvalidArgumentError(StrCat(where, " is not a list of at most ", kMostOperatingPoints));
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < list.size(); ++i) {
    GH_ASSIGN_OR_RETURN(OperatingPoint point, ReadPoint(list[i], StrCat(where, "[", i, "]"), layers));
    if (!seen.insert(point.name).second) {
      return absl::InvalidArgumentError(StrCat(where, " has two of the name of entry ", i));
    }
    info.operating_points.push_back(std::move(point));
  }
  return absl::OkStatus();
}

absl::Status ReadIngredients(const Json& list, CalibrationInfo& info) {
  const absl::Status error =
      absl::InvalidArgumentError(StrCat("calibration.ingredients is not a list of at most ", kMostIngredients,
                                        " strings, each of at most ", kMostText, " bytes"));
  if (!list.is_array() || list.size() > kMostIngredients) return error;
  for (const Json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > kMostText) return error;
    info.ingredients.push_back(item.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadDescription(const Json& object, int layers, CalibrationInfo& info) {
  if (!object.is_object()) return absl::InvalidArgumentError("calibration is not a JSON object");
  constexpr int64_t kMost = int64_t{1} << 53;
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
  if (reader.Has("ingredients")) GH_RETURN_IF_ERROR(ReadIngredients(object["ingredients"], info));
  if (reader.Has("operating_points")) GH_RETURN_IF_ERROR(ReadPoints(object["operating_points"], layers, info));
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
                 {"layers", Json::array()},
                 {"ingredients", info.ingredients},
                 {"operating_points", Json::array()}};
  for (const LayerCalibration& layer : info.layers) object["layers"].push_back(LayerJson(layer));
  for (const OperatingPoint& point : info.operating_points) object["operating_points"].push_back(PointJson(point));
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
