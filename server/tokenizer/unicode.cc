#include "server/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "server/base/strings.h"
#include "server/tokenizer/unicode_tables.h"

namespace gatehouse {
namespace {

constexpr int kClassMask = 3;
constexpr int kWordBit = 4;

int SearchRanges(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                      [](char32_t c, const CodePointRange& range) { return c < range.first; });
  if (after == ranges.begin()) return 0;
  const CodePointRange& range = *std::prev(after);
  return code_point <= range.last ? range.value : 0;
}

// The class bits of a code point; those below U+0800 (one or two bytes of UTF-8,
// which is most text in alphabets) come from a table filled once.
int ClassBits(char32_t code_point) {
  static const auto kLow = [] {
    std::array<uint8_t, 0x800> low;
    for (char32_t c = 0; c < low.size(); ++c) low[c] = static_cast<uint8_t>(SearchRanges(kClassRanges, c));
    return low;
  }();
  return code_point < kLow.size() ? kLow[code_point] : SearchRanges(kClassRanges, code_point);
}

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The length of the well-formed character at the start of `text`, 0 if there is none.
size_t WellFormedLength(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  const char32_t c = DecodeFirst(text).code_point;
  const bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
  const bool surrogate = c >= 0xD800 && c < 0xE000;
  return overlong || surrogate || c > 0x10FFFF ? 0 : length;
}

}  // namespace

CharClass ClassOf(char32_t code_point) { return static_cast<CharClass>(ClassBits(code_point) & kClassMask); }

bool IsWordChar(char32_t code_point) { return (ClassBits(code_point) & kWordBit) != 0; }

bool IsNumeric(char32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  return SearchRanges(kNumericRanges, code_point) != 0;
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = WellFormedLength(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

DecodedChar DecodeFirst(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

DecodedChar DecodeLast(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && IsContinuation(text[at])) --at;
  return DecodeFirst(text.substr(at));
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 60;
  if (text.size() <= kLongest) return StrCat("\"", text, "\"");
  size_t end = kLongest;
  while (end > 0 && IsContinuation(text[end])) --end;
  return StrCat("\"", text.substr(0, end), "…\"");
}

}  // namespace gatehouse
