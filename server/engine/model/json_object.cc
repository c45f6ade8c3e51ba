#include "server/engine/model/json_object.h"

#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr int kMaxDepth = 64;

// Whether brackets nest deeper than kMaxDepth; signs in strings do not count.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char sign = text[i];
    if (in_string) {
      if (sign == '\\') ++i;
      if (sign == '"') in_string = false;
    } else if (sign == '"') {
      in_string = true;
    } else if (sign == '{' || sign == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (sign == '}' || sign == ']') {
      --depth;
    }
  }
  return false;
}

// The value as JSON, cut to a length that suits a message.
std::string Shown(const nlohmann::json& value) {
  constexpr size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMost) text = StrCat(text.substr(0, kMost), "…");
  return text;
}

}  // namespace

absl::StatusOr<JsonObject> JsonObject::Parse(std::string_view text, std::string_view what) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(StrCat(what, ": JSON nested more than ", kMaxDepth, " deep"));
  }
  // The parser would take a NUL for the end of the text.
  if (text.find('\0') != text.npos) return absl::InvalidArgumentError(StrCat(what, ": holds a NUL byte"));
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError(StrCat(what, ": not valid JSON"));
  if (!value.is_object()) return absl::InvalidArgumentError(StrCat(what, ": not a JSON object"));
  return JsonObject(std::move(value), std::string(what));
}

const nlohmann::json* JsonObject::Find(std::string_view key) const {
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

std::vector<std::string> JsonObject::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : value_.items()) {
    if (!value.is_null()) keys.push_back(key);
  }
  return keys;
}

absl::StatusOr<int64_t> JsonObject::Int(std::string_view key, int64_t low, int64_t high) const {
  const nlohmann::json* value = Find(key);
  const std::string wanted = StrCat("must be an integer from ", low, " to ", high);
  if (value == nullptr || !value->is_number_integer()) return WrongValue(key, wanted);
  // Unsigned values above the signed range would wrap.
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(high)) {
    return WrongValue(key, wanted);
  }
  const int64_t number = value->get<int64_t>();
  if (number < low || number > high) return WrongValue(key, wanted);
  return number;
}

absl::StatusOr<int64_t> JsonObject::IntOr(std::string_view key, int64_t low, int64_t high, int64_t absent) const {
  return Has(key) ? Int(key, low, high) : absent;
}

absl::StatusOr<double> JsonObject::Positive(std::string_view key, double high) const {
  const nlohmann::json* value = Find(key);
  const std::string wanted = StrCat("must be a number above 0, at most ", high);
  if (value == nullptr || !value->is_number()) return WrongValue(key, wanted);
  const double number = value->get<double>();
  if (!(number > 0 && number <= high)) return WrongValue(key, wanted);
  return number;
}

absl::StatusOr<double> JsonObject::PositiveOr(std::string_view key, double high, double absent) const {
  return Has(key) ? Positive(key, high) : absent;
}

absl::StatusOr<bool> JsonObject::BoolOr(std::string_view key, bool absent) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return WrongValue(key, "must be true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || !value->is_string()) return WrongValue(key, "must be a string");
  return value->get<std::string>();
}

absl::StatusOr<std::string> JsonObject::StringOr(std::string_view key, std::string_view absent) const {
  return Has(key) ? String(key) : std::string(absent);
}

absl::StatusOr<JsonObject> JsonObject::ObjectOr(std::string_view key) const {
  const std::string what = StrCat(what_, ": ", key);
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return JsonObject(nlohmann::json::object(), what);
  if (!value->is_object()) return WrongValue(key, "must be an object");
  return JsonObject(*value, what);
}

absl::Status JsonObject::Error(std::string_view key, std::string_view message) const {
  return absl::InvalidArgumentError(StrCat(what_, ": ", key, " ", message));
}

absl::Status JsonObject::WrongValue(std::string_view key, std::string_view wanted) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return Error(key, StrCat(wanted, "; it is missing"));
  return Error(key, StrCat(wanted, "; it is ", Shown(*value)));
}

}  // namespace gatehouse
