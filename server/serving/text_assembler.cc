#include "server/serving/text_assembler.h"

#include <algorithm>
#include <utility>

namespace gatehouse {
namespace {

std::vector<size_t> Borders(std::string_view pattern) {
  std::vector<size_t> border(pattern.size(), 0);
  size_t length = 0;
  for (size_t i = 1; i < pattern.size(); ++i) {
    while (length > 0 && pattern[i] != pattern[length]) length = border[length - 1];
    if (pattern[i] == pattern[length]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

TextAssembler::TextAssembler(const std::vector<std::string>& stops) {
  for (const std::string& text : stops) stops_.push_back(Stop{text, Borders(text)});
}

std::string TextAssembler::Append(std::string_view bytes) { return Match(characters_.Append(bytes)); }

std::string TextAssembler::Finish() {
  if (stopped()) return "";
  std::string text = Match(characters_.Finish());
  text += std::exchange(held_, "");
  return text;
}

std::string_view TextAssembler::matched_stop() const {
  return stopped() ? std::string_view(stops_[matched_].text) : std::string_view();
}

std::string TextAssembler::Match(std::string_view characters) {
  if (stops_.empty()) return std::string(characters);
  size_t hold = 0;
  for (const char c : characters) {
    held_.push_back(c);
    hold = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      while (stop.matched > 0 && c != stop.text[stop.matched]) stop.matched = stop.border[stop.matched - 1];
      if (c == stop.text[stop.matched]) ++stop.matched;
      if (stop.matched < stop.text.size()) {
        hold = std::max(hold, stop.matched);
      } else if (!stopped() || stop.text.size() > stops_[matched_].text.size()) {
        matched_ = static_cast<int>(i);
      }
    }
    if (stopped()) {
      hold = stops_[matched_].text.size();
      break;
    }
  }
  if (characters.empty()) return "";
  std::string text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  if (stopped()) held_.clear();
  return text;
}

}  // namespace gatehouse
