#include "client/load/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace gatehouse::client {
namespace {

constexpr std::array<const char*, 3> kColumns = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};

absl::Status Bad(size_t line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, " of the trace: ", what));
}

// What stands in a field, short and without what could drive a terminal.
std::string Shown(const std::string& text) { return absl::StrCat("'", absl::CHexEscape(text.substr(0, 40)), "'"); }

// Seconds since some moment that is the same for all lines.
absl::StatusOr<double> ParseTimestamp(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) return seconds;
  absl::Time time;
  for (const char* form : {"%Y-%m-%d %H:%M:%E*S", "%Y-%m-%d %H:%M:%E*S%Ez", "%Y-%m-%dT%H:%M:%E*S%Ez"}) {
    if (absl::ParseTime(form, text, &time, nullptr)) return absl::ToDoubleSeconds(time - absl::UnixEpoch());
  }
  return absl::InvalidArgumentError(absl::StrCat(kColumns[0], " ", Shown(text), " is no time"));
}

absl::StatusOr<uint32_t> ParseTokens(const char* column, const std::string& text) {
  uint32_t tokens = 0;
  if (absl::SimpleAtoi(text, &tokens)) return tokens;
  return absl::InvalidArgumentError(absl::StrCat(column, " ", Shown(text), " is no number of tokens"));
}

std::vector<std::string> Fields(const std::string& line) {
  std::vector<std::string> fields = absl::StrSplit(line, ',');
  for (std::string& field : fields) absl::StripAsciiWhitespace(&field);
  return fields;
}

// Where the columns stand.
absl::StatusOr<std::array<size_t, 3>> FindColumns(const std::string& heading) {
  // Spreadsheets mark UTF-8 so.
  constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";
  const std::vector<std::string> names = Fields(std::string(absl::StripPrefix(heading, kByteOrderMark)));
  std::array<size_t, 3> places{};
  for (size_t i = 0; i < kColumns.size(); ++i) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return absl::AsciiStrToLower(name) == absl::AsciiStrToLower(kColumns[i]);
    });
    if (found == names.end()) {
      return Bad(1, absl::StrCat("it names no column ", kColumns[i],
                                 "; the first line must be TIMESTAMP,ContextTokens,GeneratedTokens"));
    }
    places[i] = static_cast<size_t>(found - names.begin());
  }
  return places;
}

absl::StatusOr<TraceEntry> ParseLine(const std::string& line, const std::array<size_t, 3>& places) {
  const std::vector<std::string> fields = Fields(line);
  if (fields.size() <= *std::max_element(places.begin(), places.end())) {
    return absl::InvalidArgumentError("it has fewer fields than the first line");
  }
  const auto seconds = ParseTimestamp(fields[places[0]]);
  if (!seconds.ok()) return seconds.status();
  const auto prompt = ParseTokens(kColumns[1], fields[places[1]]);
  if (!prompt.ok()) return prompt.status();
  const auto generated = ParseTokens(kColumns[2], fields[places[2]]);
  if (!generated.ok()) return generated.status();
  return TraceEntry{*seconds, *prompt, *generated};
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(std::istream& csv, size_t limit) {
  std::string line;
  if (!std::getline(csv, line)) return absl::InvalidArgumentError("the trace is empty");
  const auto places = FindColumns(line);
  if (!places.ok()) return places.status();
  std::vector<TraceEntry> entries;
  for (size_t number = 2; std::getline(csv, line); ++number) {
    absl::StripAsciiWhitespace(&line);
    if (line.empty()) continue;
    const auto entry = ParseLine(line, *places);
    if (!entry.ok()) return Bad(number, std::string(entry.status().message()));
    entries.push_back(*entry);
  }
  if (entries.empty()) return absl::InvalidArgumentError("the trace has no requests");
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TraceEntry& a, const TraceEntry& b) { return a.seconds < b.seconds; });
  entries.resize(std::min(entries.size(), limit));
  const double first = entries.empty() ? 0 : entries.front().seconds;
  for (TraceEntry& entry : entries) entry.seconds -= first;
  return entries;
}

}  // namespace gatehouse::client
