#ifndef GATEHOUSE_SERVER_TOKENIZER_BYTE_ALPHABET_H_
#define GATEHOUSE_SERVER_TOKENIZER_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace gatehouse {

// Byte-level BPE writes each byte as one printable character ("Ġ" for a blank); these
// turn that spelling back into bytes.

// The byte that the character stands for.
std::optional<unsigned char> ByteOfChar(char32_t character);

// The bytes that `spelling` (well-formed UTF-8) stands for; nullopt if one of its
// characters stands for none.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_BYTE_ALPHABET_H_
