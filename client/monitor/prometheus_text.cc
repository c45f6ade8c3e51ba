#include "client/monitor/prometheus_text.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gatehouse::client {
namespace {

constexpr size_t kMaxSeries = 1'000'000;

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':'; }
bool IsNamePart(char c) { return IsNameStart(c) || (c >= '0' && c <= '9'); }

// Reads one line from its beginning; each part takes what it understands and says whether it did.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) {}

  void SkipBlanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) rest_.remove_prefix(1);
  }
  bool at_end() const { return rest_.empty(); }
  bool Take(char c) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::optional<std::string> Name() {
    SkipBlanks();
    if (rest_.empty() || !IsNameStart(rest_.front())) return std::nullopt;
    size_t length = 1;
    while (length < rest_.size() && IsNamePart(rest_[length])) ++length;
    std::string name(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return name;
  }
  std::optional<std::string> Quoted() {
    if (!Take('"')) return std::nullopt;
    std::string text;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return text;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (rest_.empty()) return std::nullopt;
      text += rest_.front() == 'n' ? '\n' : rest_.front();
      rest_.remove_prefix(1);
    }
    return std::nullopt;
  }
  std::optional<double> Value() {
    SkipBlanks();
    const size_t end = std::min(rest_.find_first_of(" \t"), rest_.size());
    const std::string word(rest_.substr(0, end));
    rest_.remove_prefix(end);
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (word == "+Inf") return std::numeric_limits<double>::infinity();
    if (word == "-Inf") return -std::numeric_limits<double>::infinity();
    double value = 0;
    if (!absl::SimpleAtod(word, &value)) return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

bool ReadLabels(LineReader& line, MetricSample& sample) {
  while (!line.Take('}')) {
    const auto name = line.Name();
    if (!name.has_value() || !line.Take('=')) return false;
    auto value = line.Quoted();
    if (!value.has_value()) return false;
    sample.labels[*name] = *std::move(value);
    if (line.Take(',')) continue;
    return line.Take('}');
  }
  return true;
}

// A series; false for a line that is none.
bool ReadSeries(std::string_view text, MetricsPage& page) {
  LineReader line(text);
  const auto name = line.Name();
  if (!name.has_value()) return false;
  MetricSample sample;
  if (line.Take('{') && !ReadLabels(line, sample)) return false;
  const auto value = line.Value();
  if (!value.has_value()) return false;
  sample.value = *value;
  line.SkipBlanks();
  // A timestamp may follow, in milliseconds.
  if (!line.at_end() && !line.Value().has_value()) return false;
  line.SkipBlanks();
  if (!line.at_end()) return false;
  page[*name].push_back(std::move(sample));
  return true;
}

}  // namespace

const std::string& MetricSample::Label(const std::string& name) const {
  static const std::string empty;
  const auto found = labels.find(name);
  return found == labels.end() ? empty : found->second;
}

absl::StatusOr<MetricsPage> ParseMetrics(std::string_view text) {
  MetricsPage page;
  size_t series = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    if (++series > kMaxSeries) return absl::InvalidArgumentError("the page has over a million series");
    if (!ReadSeries(line, page)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the page is not of Prometheus' text format"));
    }
  }
  return page;
}

}  // namespace gatehouse::client
