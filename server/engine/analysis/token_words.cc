#include "server/engine/analysis/token_words.h"

#include <algorithm>
#include <map>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kBefore = 8, kAfter = 3;  // tokens

}  // namespace

std::string TokenWord(const TokenTextFn& text, int32_t token) {
  if (!text) return StrCat("[", token, "]");
  std::string word;
  for (const char c : text(token)) {
    switch (c) {
      case '\n':
        word += "\\n";
        break;
      case '\r':
        word += "\\r";
        break;
      case '\t':
        word += "\\t";
        break;
      default:
        word += c;
    }
  }
  return word;
}

bool IsNewline(const TokenTextFn& text, int32_t token) {
  if (!text) return false;
  const std::string word = text(token);
  return !word.empty() && word.find_first_not_of("\r\n") == std::string::npos;
}

std::vector<std::pair<int32_t, int64_t>> Commonest(std::span<const int32_t> tokens, size_t most) {
  std::map<int32_t, int64_t> counts;
  for (const int32_t token : tokens) ++counts[token];
  std::vector<std::pair<int32_t, int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (sorted.size() > most) sorted.resize(most);
  return sorted;
}

std::string ShowCommonest(const TokenTextFn& text, std::span<const int32_t> tokens, size_t most) {
  std::string shown;
  for (const auto& [token, count] : Commonest(tokens, most)) {
    shown += StrCat(shown.empty() ? "" : ", ", "‹", TokenWord(text, token), "› ", count);
  }
  return shown;
}

std::string ShowInContext(const TokenTextFn& text, std::span<const int32_t> block, size_t at) {
  std::string shown;
  const size_t last = std::min(block.size(), at + kAfter + 1);
  for (size_t i = at - std::min(at, kBefore); i < last; ++i) {
    const std::string word = TokenWord(text, block[i]);
    shown += i == at ? StrCat("‹", word, "›") : word;
  }
  return shown;
}

}  // namespace gatehouse
