#include "client/utf8.h"

#include <algorithm>

namespace gatehouse::client {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Second bytes a lead byte admits: the table of well-formed sequences of the Unicode
// standard (table 3-7).
struct Lead {
  size_t length = 0;  // 0: not a lead byte
  uint8_t low = 0x80, high = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  if (bytes.empty()) return {};
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const Lead lead = LeadOf(at(0));
  if (lead.length == 0) return {.length = 1};
  if (lead.length == 1) return {.length = 1, .valid = true, .code_point = at(0)};
  char32_t code_point = at(0) & (0x7F >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {.length = i, .incomplete = true};
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (at(i) < low || at(i) > high) return {.length = i};
    code_point = (code_point << 6) | (at(i) & 0x3F);
  }
  return {.length = lead.length, .valid = true, .code_point = code_point};
}

size_t FindInvalidUtf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = NextUtf8(bytes.substr(i));
    if (!step.valid) return i;
    i += step.length;
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    text.append(step.valid ? bytes.substr(0, step.length) : std::string_view(kReplacement));
    bytes.remove_prefix(step.length);
  }
  return text;
}

bool Utf8Checker::Feed(std::string_view chunk) {
  if (!valid_) return false;
  // A character that an earlier chunk began.
  while (!carry_.empty() && !chunk.empty()) {
    carry_.push_back(chunk.front());
    const Utf8Step step = NextUtf8(carry_);
    if (!step.valid && !step.incomplete) return valid_ = false;
    chunk.remove_prefix(1);
    if (step.valid) {
      offset_ += carry_.size();
      carry_.clear();
    }
  }
  while (!chunk.empty()) {
    const Utf8Step step = NextUtf8(chunk);
    if (step.incomplete) {
      carry_ = chunk;
      break;
    }
    if (!step.valid) return valid_ = false;
    offset_ += step.length;
    chunk.remove_prefix(step.length);
  }
  return true;
}

bool Utf8Checker::Finish() { return valid_ = valid_ && carry_.empty(); }

}  // namespace gatehouse::client
