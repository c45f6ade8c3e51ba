#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_JSON_OBJECT_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_JSON_OBJECT_H_

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gatehouse {

// A JSON object whose members are read with their type and range checked.  Every error
// is InvalidArgument and names the text and the key.  A member that is null counts as
// absent.  An immutable value.
class JsonObject {
 public:
  // `what` names the text in errors, such as "config.json".
  static absl::StatusOr<JsonObject> Parse(std::string_view text, std::string_view what);

  // The first of `keys` that is present; null where none is.
  const nlohmann::json* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  std::vector<std::string> Keys() const;

  absl::StatusOr<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t low, int64_t high, int64_t absent) const;
  // Finite and above zero, at most `high`.
  absl::StatusOr<double> Positive(std::string_view key, double high) const;
  absl::StatusOr<double> PositiveOr(std::string_view key, double high, double absent) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool absent) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string_view absent) const;
  // An empty object where the key is absent.
  absl::StatusOr<JsonObject> ObjectOr(std::string_view key) const;

  // InvalidArgument: "<what>: <key> <message>".
  absl::Status Error(std::string_view key, std::string_view message) const;

 private:
  JsonObject(nlohmann::json value, std::string what) : value_(std::move(value)), what_(std::move(what)) {}

  absl::Status WrongValue(std::string_view key, std::string_view wanted) const;

  nlohmann::json value_;
  std::string what_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_JSON_OBJECT_H_
