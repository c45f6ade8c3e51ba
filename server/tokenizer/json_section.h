#ifndef GATEHOUSE_SERVER_TOKENIZER_JSON_SECTION_H_
#define GATEHOUSE_SERVER_TOKENIZER_JSON_SECTION_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace gatehouse {

using Json = nlohmann::json;

// Parses JSON that may be hostile: no exception, and nesting is bounded.
absl::StatusOr<Json> ParseJson(std::string_view text);

// A JSON object within a file, read field by field; errors name the field by its path
// (`model.merges[3]`).  Points into the Json it was made of.
class JsonSection {
 public:
  // InvalidArgument unless `value` is an object.
  static absl::StatusOr<JsonSection> Of(const Json& value, std::string path);

  // The field, or nullptr where it is absent or null.
  const Json* Find(std::string_view key) const;
  // Each is InvalidArgument where the field is of another type, or absent without a
  // fallback.
  absl::StatusOr<const Json*> Array(std::string_view key) const;
  absl::StatusOr<JsonSection> Object(std::string_view key) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key, std::optional<bool> fallback = std::nullopt) const;
  absl::StatusOr<int32_t> TokenId(std::string_view key) const;

  // InvalidArgument for a field that is none of `known`: it may change the tokens.
  absl::Status CheckKnown(std::initializer_list<std::string_view> known) const;
  // InvalidArgument `<path>.<key> <what>`.
  absl::Status Error(std::string_view key, std::string_view what) const;

  std::string PathOf(std::string_view key) const;
  const Json& json() const { return *value_; }

 private:
  JsonSection(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json* value_;
  std::string path_;
};

// InvalidArgument, naming `path`, unless `value` is an integer from 0 to below
// kTokenIdLimit.
absl::StatusOr<int32_t> ReadTokenId(const Json& value, std::string_view path);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_JSON_SECTION_H_
