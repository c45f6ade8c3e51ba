#include "server/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) { return uint64_t{node} * 256 + static_cast<unsigned char>(byte); }

// The start of the white space that ends `text`.
size_t TrailingSpaceStart(std::string_view text) {
  while (!text.empty()) {
    const DecodedChar last = DecodeLast(text);
    if (ClassOf(last.code_point) != CharClass::kSpace) break;
    text.remove_suffix(last.length);
  }
  return text.size();
}

// The end of the white space that starts `text`.
size_t LeadingSpaceEnd(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const DecodedChar next = DecodeFirst(text.substr(end));
    if (ClassOf(next.code_point) != CharClass::kSpace) break;
    end += next.length;
  }
  return end;
}

bool TouchesWord(std::string_view before, std::string_view after) {
  return (!before.empty() && IsWordChar(DecodeLast(before).code_point)) ||
         (!after.empty() && IsWordChar(DecodeFirst(after).code_point));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  token_at_.push_back(kNoToken);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    is_first_byte_[static_cast<unsigned char>(content[0])] = true;
    uint32_t node = 0;
    for (const char byte : content) {
      const auto [edge, is_new] = edges_.emplace(EdgeKey(node, byte), static_cast<uint32_t>(token_at_.size()));
      if (is_new) token_at_.push_back(kNoToken);
      node = edge->second;
    }
    token_at_[node] = static_cast<int32_t>(i);
  }
}

AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text) const {
  Match longest{kNoToken, 0};
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(EdgeKey(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_[node] != kNoToken) longest = {token_at_[node], i + 1};
  }
  return longest;
}

std::vector<AddedTokenMatcher::Span> AddedTokenMatcher::Split(std::string_view text, bool skip_special) const {
  std::vector<Span> spans;
  size_t done = 0;  // all before is in `spans`
  size_t at = 0;
  size_t space_end = 0;  // of the white space that an rstrip token took last
  while (at < text.size()) {
    if (!is_first_byte_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = LongestAt(text.substr(at));
    if (match.token == kNoToken) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match.token];
    size_t start = at;
    size_t stop = at + match.length;
    // A match that does not count still hides those inside it.
    at = stop;
    if (skip_special && token.special) continue;
    if (token.single_word && TouchesWord(text.substr(0, start), text.substr(stop))) continue;
    if (token.lstrip && done < start) start = done + TrailingSpaceStart(text.substr(done, start - done));
    if (token.rstrip) {
      if (space_end < stop) space_end = stop + LeadingSpaceEnd(text.substr(stop));
      stop = space_end;
    }
    if (done < start) spans.push_back({kText, text.substr(done, start - done)});
    spans.push_back({token.id, text.substr(start, stop - start)});
    done = stop;
  }
  if (done < text.size()) spans.push_back({kText, text.substr(done)});
  return spans;
}

}  // namespace gatehouse
