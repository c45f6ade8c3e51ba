#include "server/tokenizer/json_section.h"

#include <algorithm>
#include <utility>

#include "server/base/strings.h"
#include "server/tokenizer/tokenizer_json.h"
#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

constexpr int kDeepestNesting = 32;

// The deepest nesting of brackets outside strings.
int NestingOf(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text) {
  if (NestingOf(text) > kDeepestNesting) {
    return absl::InvalidArgumentError(StrCat("JSON is nested deeper than ", kDeepestNesting));
  }
  Json json = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError("is not well-formed JSON in UTF-8");
  return json;
}

absl::StatusOr<JsonSection> JsonSection::Of(const Json& value, std::string path) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(StrCat(path.empty() ? "the file" : path, " is not a JSON object"));
  }
  return JsonSection(value, std::move(path));
}

const Json* JsonSection::Find(std::string_view key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<const Json*> JsonSection::Array(std::string_view key) const {
  const Json* field = Find(key);
  if (field == nullptr || !field->is_array()) return Error(key, "is not an array");
  return field;
}

absl::StatusOr<JsonSection> JsonSection::Object(std::string_view key) const {
  const Json* field = Find(key);
  if (field == nullptr) return Error(key, "is missing");
  return Of(*field, PathOf(key));
}

absl::StatusOr<std::string> JsonSection::String(std::string_view key) const {
  const Json* field = Find(key);
  if (field == nullptr || !field->is_string()) return Error(key, "is not a string");
  return field->get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonSection::Bool(std::string_view key, std::optional<bool> fallback) const {
  const Json* field = Find(key);
  if (field == nullptr && fallback.has_value()) return *fallback;
  if (field == nullptr || !field->is_boolean()) return Error(key, "is neither true nor false");
  return field->get<bool>();
}

absl::StatusOr<int32_t> JsonSection::TokenId(std::string_view key) const {
  const Json* field = Find(key);
  if (field == nullptr) return Error(key, "is missing");
  return ReadTokenId(*field, PathOf(key));
}

absl::Status JsonSection::CheckKnown(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return absl::InvalidArgumentError(StrCat("the field ", Quoted(PathOf(key)), " is not known"));
    }
  }
  return absl::OkStatus();
}

absl::Status JsonSection::Error(std::string_view key, std::string_view what) const {
  return absl::InvalidArgumentError(StrCat(PathOf(key), " ", what));
}

std::string JsonSection::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : StrCat(path_, ".", key);
}

absl::StatusOr<int32_t> ReadTokenId(const Json& value, std::string_view path) {
  // Negative integers are kept signed, all others unsigned.
  const bool in_range = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{kTokenIdLimit};
  if (!in_range) {
    return absl::InvalidArgumentError(StrCat(path, " is not a token id from 0 to ", kTokenIdLimit - 1));
  }
  return value.get<int32_t>();
}

}  // namespace gatehouse
