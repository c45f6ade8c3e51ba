#ifndef GATEHOUSE_SERVER_TOKENIZER_UNICODE_TABLES_H_
#define GATEHOUSE_SERVER_TOKENIZER_UNICODE_TABLES_H_

#include <span>

namespace gatehouse {

// Tables that tools/make_unicode_tables.py writes; unicode.h and nfc.h are their
// readers.  Each is sorted by its first field (or first two).

// The code points first..last share `value`.
struct CodePointRange {
  char32_t first;
  char32_t last;
  int value;
};

// CharClass in the two low bits, "is a word character" in the third.
extern const std::span<const CodePointRange> kClassRanges;
// Every code point of category N.
extern const std::span<const CodePointRange> kNumericRanges;
// The canonical combining classes other than 0.
extern const std::span<const CodePointRange> kCombiningClassRanges;

// A code point's full canonical decomposition, ended by 0 where shorter than four;
// Hangul syllables are computed instead.
struct Decomposition {
  char32_t code_point;
  char32_t parts[4];
};
extern const std::span<const Decomposition> kDecompositions;

// `first` and `second` compose to `composite`.
struct Composition {
  char32_t first;
  char32_t second;
  char32_t composite;
};
extern const std::span<const Composition> kCompositions;

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_UNICODE_TABLES_H_
