#include "server/page/trace_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/page/trace_section.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

using PlainJson = nlohmann::json;

constexpr double kMostSeconds = 3600;

absl::Status WrongType(const char* field, const char* wanted) {
  return absl::InvalidArgumentError(StrCat(field, " must be ", wanted));
}

// The fields of an object; each returns nothing where the object has no such field.
struct Fields {
  const PlainJson& object;

  const PlainJson* Find(const char* field) const {
    const auto found = object.find(field);
    return found == object.end() ? nullptr : &*found;
  }
  absl::StatusOr<std::optional<std::string>> Text(const char* field) const {
    const PlainJson* const value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) return WrongType(field, "a string");
    return value->get<std::string>();
  }
  absl::StatusOr<std::optional<double>> Number(const char* field) const {
    const PlainJson* const value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) return WrongType(field, "a number");
    return value->get<double>();
  }
  absl::StatusOr<std::optional<uint64_t>> Whole(const char* field, uint64_t most) const {
    const PlainJson* const value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned() || value->get<uint64_t>() > most) {
      return absl::InvalidArgumentError(StrCat(field, " must be a whole number in [0, ", most, "]"));
    }
    return value->get<uint64_t>();
  }
};

absl::Status ReadGating(const Fields& fields, v1::GatingPolicy& gating) {
  GH_ASSIGN_OR_RETURN(const auto mode, fields.Text("gating"));
  GH_ASSIGN_OR_RETURN(const auto threshold, fields.Number("threshold"));
  GH_ASSIGN_OR_RETURN(const auto operating_point, fields.Text("operating_point"));
  const std::string name = mode.value_or("full");
  if (name == "full") {
    gating.set_mode(v1::GatingPolicy::MODE_FULL);
  } else if (name == "linear") {
    gating.set_mode(v1::GatingPolicy::MODE_LINEAR);
  } else if (name == "gated") {
    gating.set_mode(v1::GatingPolicy::MODE_GATED);
  } else {
    return absl::InvalidArgumentError("gating must be \"full\", \"linear\" or \"gated\"");
  }
  if (threshold.has_value()) gating.set_threshold(static_cast<float>(*threshold));
  gating.set_operating_point(operating_point.value_or(""));
  return absl::OkStatus();
}

absl::Status CheckFields(const PlainJson& object) {
  if (!object.is_object()) return absl::InvalidArgumentError("the body must be one JSON object");
  for (const auto& [name, value] : object.items()) {
    if (std::find(kTraceFields.begin(), kTraceFields.end(), name) != kTraceFields.end()) continue;
    return absl::InvalidArgumentError(StrCat("there is no field '", name.substr(0, 64), "'"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TraceRequest> ParseTraceRequest(std::string_view json) {
  const PlainJson object = PlainJson::parse(json, nullptr, false);
  if (object.is_discarded()) return absl::InvalidArgumentError("the body is not JSON in UTF-8");
  GH_RETURN_IF_ERROR(CheckFields(object));
  const Fields fields{object};
  GH_ASSIGN_OR_RETURN(const auto model, fields.Text("model"));
  GH_ASSIGN_OR_RETURN(const auto prompt, fields.Text("prompt"));
  GH_ASSIGN_OR_RETURN(const auto max_tokens, fields.Whole("max_tokens", std::numeric_limits<uint32_t>::max()));
  GH_ASSIGN_OR_RETURN(const auto temperature, fields.Number("temperature"));
  GH_ASSIGN_OR_RETURN(const auto seed, fields.Whole("seed", std::numeric_limits<uint64_t>::max()));
  GH_ASSIGN_OR_RETURN(const auto seconds, fields.Number("timeout_seconds"));
  if (seconds.has_value() && !(*seconds > 0 && *seconds <= kMostSeconds)) {
    return absl::InvalidArgumentError(StrCat("timeout_seconds must lie in (0, ", kMostSeconds, "]"));
  }
  TraceRequest request;
  v1::GenerateRequest& generate = request.generate;
  generate.set_model(model.value_or(""));
  generate.mutable_prompt()->set_text(prompt.value_or(""));
  if (max_tokens.has_value()) generate.set_max_tokens(static_cast<uint32_t>(*max_tokens));
  if (temperature.has_value()) generate.mutable_sampling()->set_temperature(static_cast<float>(*temperature));
  if (seed.has_value()) generate.mutable_sampling()->set_seed(*seed);
  GH_RETURN_IF_ERROR(ReadGating(fields, *generate.mutable_gating()));
  *generate.mutable_records() = client::TraceRecords();
  generate.set_record_prompt(true);
  if (seconds.has_value()) request.timeout = absl::Seconds(*seconds);
  return request;
}

}  // namespace gatehouse
