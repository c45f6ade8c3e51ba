#include "client/cli/parse.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gatehouse::cli {
namespace {

// No model has more layers; keeps "0-4000000000" from filling memory.
constexpr uint32_t kMaxLayer = 65535;
constexpr uint32_t kMaxLength = 16777216;

std::string_view Trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

template <typename Number>
absl::StatusOr<Number> ParseNumber(std::string_view text, const char* wanted) {
  text = Trim(text);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return NotWanted(text, wanted);
  return number;
}

template <typename Number>
absl::StatusOr<std::vector<Number>> ParseList(std::string_view text, const char* wanted) {
  std::vector<Number> numbers;
  for (std::string_view part : Split(text, ',')) {
    const auto number = ParseNumber<Number>(part, wanted);
    if (!number.ok()) return number.status();
    numbers.push_back(*number);
  }
  return numbers;
}

// Splits "KEY=VALUE".
absl::StatusOr<std::pair<std::string, float>> ParseAssignment(const std::string& text, const char* wanted) {
  const size_t sign = text.find('=');
  if (sign == std::string::npos) return NotWanted(text, wanted);
  auto value = ParseNumber<float>(std::string_view(text).substr(sign + 1), "a number");
  if (!value.ok()) return value.status();
  return std::pair(text.substr(0, sign), *value);
}

}  // namespace

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

absl::Status NotWanted(std::string_view text, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' is not ", wanted));
}

absl::StatusOr<std::vector<uint32_t>> ParseLayers(const std::string& text) {
  std::set<uint32_t> layers;
  for (std::string_view part : Split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = ParseNumber<uint32_t>(part.substr(0, dash), "a layer number or a range such as 5-8");
    if (!first.ok()) return first.status();
    const auto last =
        dash == std::string_view::npos ? first : ParseNumber<uint32_t>(part.substr(dash + 1), "a layer number");
    if (!last.ok()) return last.status();
    if (*first > *last) return NotWanted(part, "a range: its end lies before its beginning");
    if (*last > kMaxLayer) return NotWanted(part, "a layer of any model");
    for (uint32_t layer = *first; layer <= *last; ++layer) layers.insert(layer);
  }
  return std::vector<uint32_t>(layers.begin(), layers.end());
}

absl::StatusOr<std::vector<uint32_t>> ParseOrder(const std::string& text) {
  return ParseList<uint32_t>(text, "a layer number");
}

absl::StatusOr<uint64_t> ParseWholeNumber(const std::string& text, uint64_t most) {
  const std::string wanted = absl::StrCat("a whole number in [0, ", most, "]");
  const auto number = ParseNumber<uint64_t>(text, wanted.c_str());
  if (number.ok() && *number > most) return NotWanted(text, wanted.c_str());
  return number;
}

absl::StatusOr<std::vector<uint32_t>> ParseCounts(const std::string& text) {
  return ParseList<uint32_t>(text, "a whole number in [0, 4294967295]");
}

absl::StatusOr<std::pair<uint32_t, uint32_t>> ParseLengths(const std::string& text) {
  const size_t dash = text.find('-');
  const std::string_view first = std::string_view(text).substr(0, dash);
  const std::string_view last = dash == std::string::npos ? first : std::string_view(text).substr(dash + 1);
  constexpr char kWanted[] = "a number of tokens, or a range such as 64-256";
  const auto low = ParseNumber<uint32_t>(first, kWanted);
  if (!low.ok()) return low.status();
  const auto high = ParseNumber<uint32_t>(last, kWanted);
  if (!high.ok()) return high.status();
  if (*low < 1 || *high > kMaxLength) return NotWanted(text, "in [1, 16777216]");
  if (*low > *high) return NotWanted(text, "a range: its end lies before its beginning");
  return std::pair(*low, *high);
}

absl::StatusOr<std::vector<double>> ParseNumbers(const std::string& text) {
  return ParseList<double>(text, "a number");
}

absl::StatusOr<double> ParseShare(const std::string& text) {
  const bool percent = text.ends_with('%');
  const auto number = ParseNumber<double>(std::string_view(text).substr(0, text.size() - (percent ? 1 : 0)),
                                          "a share, such as 1% or 0.01");
  if (!number.ok()) return number.status();
  return percent ? *number / 100 : *number;
}

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const std::string& text) {
  return ParseList<int32_t>(text, "a token id");
}

absl::StatusOr<std::vector<std::pair<uint32_t, float>>> ParseLayerThreshold(const std::string& text) {
  const auto assignment = ParseAssignment(text, "LAYERS=THRESHOLD, such as 5=0.7");
  if (!assignment.ok()) return assignment.status();
  const auto layers = ParseLayers(assignment->first);
  if (!layers.ok()) return layers.status();
  std::vector<std::pair<uint32_t, float>> thresholds;
  for (uint32_t layer : *layers) thresholds.emplace_back(layer, assignment->second);
  return thresholds;
}

absl::StatusOr<std::pair<int32_t, float>> ParseLogitBias(const std::string& text) {
  const auto assignment = ParseAssignment(text, "TOKEN_ID=BIAS, such as 11=-2.5 or 11=-inf");
  if (!assignment.ok()) return assignment.status();
  const auto id = ParseNumber<int32_t>(assignment->first, "a token id");
  if (!id.ok()) return id.status();
  return std::pair(*id, assignment->second);
}

absl::StatusOr<std::vector<std::string>> ParseWords(const std::string& text, const std::vector<std::string>& allowed) {
  std::vector<std::string> words;
  for (std::string_view part : Split(text, ',')) {
    const std::string word(Trim(part));
    if (std::find(allowed.begin(), allowed.end(), word) == allowed.end()) {
      return absl::InvalidArgumentError(absl::StrCat("'", word, "' is not one of ", absl::StrJoin(allowed, ", ")));
    }
    words.push_back(word);
  }
  return words;
}

}  // namespace gatehouse::cli
