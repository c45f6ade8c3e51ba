#include "server/tokenizer/nfc.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <vector>

#include "server/tokenizer/unicode.h"
#include "server/tokenizer/unicode_tables.h"

namespace gatehouse {
namespace {

// Hangul syllables are composed by arithmetic (the Unicode Standard, 3.12).
constexpr char32_t kSyllableBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161, kTailBase = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28;

// Below this, no code point takes part in a composition as its second, none has a
// combining class, and all are their own NFC.
constexpr char32_t kFirstCombining = 0x300;

struct Character {
  char32_t code_point;
  int combining_class;
};

int CombiningClass(char32_t c) {
  if (c < kFirstCombining) return 0;
  const auto after = std::upper_bound(kCombiningClassRanges.begin(), kCombiningClassRanges.end(), c,
                                      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  if (after == kCombiningClassRanges.begin()) return 0;
  const CodePointRange& range = *std::prev(after);
  return c <= range.last ? range.value : 0;
}

void Decompose(char32_t c, std::vector<Character>& out) {
  if (c >= kSyllableBase && c < kSyllableBase + kLeads * kVowels * kTails) {
    const char32_t index = c - kSyllableBase;
    out.push_back({kLeadBase + index / (kVowels * kTails), 0});
    out.push_back({kVowelBase + index % (kVowels * kTails) / kTails, 0});
    if (index % kTails != 0) out.push_back({kTailBase + index % kTails, 0});
    return;
  }
  const auto found =
      std::lower_bound(kDecompositions.begin(), kDecompositions.end(), c,
                       [](const Decomposition& entry, char32_t value) { return entry.code_point < value; });
  if (found == kDecompositions.end() || found->code_point != c) {
    out.push_back({c, CombiningClass(c)});
    return;
  }
  for (const char32_t part : found->parts) {
    if (part != 0) out.push_back({part, CombiningClass(part)});
  }
}

// Sorts each run of combining marks by class, keeping the order within a class.
void OrderMarks(std::vector<Character>& text) {
  const auto is_mark = [](const Character& c) { return c.combining_class != 0; };
  auto at = text.begin();
  while (true) {
    at = std::find_if(at, text.end(), is_mark);
    if (at == text.end()) return;
    const auto end = std::find_if_not(at, text.end(), is_mark);
    std::stable_sort(at, end,
                     [](const Character& a, const Character& b) { return a.combining_class < b.combining_class; });
    at = end;
  }
}

// The composite of the pair, 0 if it has none.
char32_t Compose(char32_t first, char32_t second) {
  if (first >= kLeadBase && first < kLeadBase + kLeads && second >= kVowelBase && second < kVowelBase + kVowels) {
    return kSyllableBase + ((first - kLeadBase) * kVowels + (second - kVowelBase)) * kTails;
  }
  const bool is_pair_syllable = first >= kSyllableBase && first < kSyllableBase + kLeads * kVowels * kTails &&
                                (first - kSyllableBase) % kTails == 0;
  if (is_pair_syllable && second > kTailBase && second < kTailBase + kTails) return first + (second - kTailBase);
  const auto found = std::lower_bound(kCompositions.begin(), kCompositions.end(), std::tuple(first, second),
                                      [](const Composition& entry, const std::tuple<char32_t, char32_t>& pair) {
                                        return std::tuple(entry.first, entry.second) < pair;
                                      });
  const bool is_found = found != kCompositions.end() && found->first == first && found->second == second;
  return is_found ? found->composite : 0;
}

// The canonical composition algorithm: each character joins the last starter unless
// one between them has the same or a higher class, or is a starter itself.
void ComposeAll(std::vector<Character>& text) {
  size_t size = 0;
  size_t starter = std::string::npos;
  for (const Character character : text) {
    if (starter != std::string::npos) {
      const bool adjacent = size == starter + 1;
      const bool blocked = !adjacent && text[size - 1].combining_class >= character.combining_class;
      const char32_t composite = blocked ? 0 : Compose(text[starter].code_point, character.code_point);
      if (composite != 0) {
        text[starter].code_point = composite;
        continue;
      }
    }
    if (character.combining_class == 0) starter = size;
    text[size++] = character;
  }
  text.resize(size);
}

}  // namespace

bool IsPlainlyNfc(std::string_view text) {
  // Code points from U+0300 on have a lead byte from 0xCC on.
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0xCC; });
}

std::string ToNfc(std::string_view text) {
  if (IsPlainlyNfc(text)) return std::string(text);
  std::vector<Character> characters;
  characters.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const DecodedChar next = DecodeFirst(rest);
    Decompose(next.code_point, characters);
    rest.remove_prefix(next.length);
  }
  OrderMarks(characters);
  ComposeAll(characters);
  std::string result;
  result.reserve(text.size());
  for (const Character character : characters) AppendUtf8(character.code_point, result);
  return result;
}

}  // namespace gatehouse
