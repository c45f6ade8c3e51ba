#ifndef GATEHOUSE_SERVER_TOKENIZER_UNICODE_H_
#define GATEHOUSE_SERVER_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace gatehouse {

// What the GPT-2 regular expression distinguishes: \p{L}, \p{N}, \s, and the rest.
enum class CharClass { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

// The class as the reference's regular expressions have it (Unicode 16.0.0; white
// space is the 25 code points of White_Space).
CharClass ClassOf(char32_t code_point);
// \w of the regular expressions that guard single-word tokens (Unicode 16.0.0).
bool IsWordChar(char32_t code_point);
// What the pre-tokenizer "Digits" splits at: category N (Unicode 17.0.0).
bool IsNumeric(char32_t code_point);

// The place of the first byte that is not part of well-formed UTF-8 (no surrogates,
// no overlong forms), or npos.
size_t FindInvalidUtf8(std::string_view text);

struct DecodedChar {
  char32_t code_point;
  size_t length;  // in bytes
};
// The first character.  REQUIRES: text is well-formed UTF-8 and not empty.
DecodedChar DecodeFirst(std::string_view text);
// The last character.  REQUIRES: as above.
DecodedChar DecodeLast(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& out);

// `text` in quotes and cut short, for an error message.  REQUIRES: text is well-formed.
std::string Quoted(std::string_view text);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_UNICODE_H_
