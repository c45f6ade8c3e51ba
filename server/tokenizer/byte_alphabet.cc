#include "server/tokenizer/byte_alphabet.h"

#include <array>

#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

constexpr int kNoByte = -1;
// The alphabet ends here: 256 plus the number of bytes that do not print.
constexpr char32_t kAlphabetEnd = 0x144;

constexpr bool Prints(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// A printing byte is written as the character of its value, the others as the
// characters from U+0100 on, in order.
constexpr std::array<int, kAlphabetEnd> kByteOfChar = [] {
  std::array<int, kAlphabetEnd> bytes{};
  for (int& byte : bytes) byte = kNoByte;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) bytes[Prints(byte) ? static_cast<char32_t>(byte) : next++] = byte;
  return bytes;
}();

}  // namespace

std::optional<unsigned char> ByteOfChar(char32_t character) {
  if (character >= kAlphabetEnd || kByteOfChar[character] == kNoByte) return std::nullopt;
  return static_cast<unsigned char>(kByteOfChar[character]);
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const DecodedChar next = DecodeFirst(spelling);
    const std::optional<unsigned char> byte = ByteOfChar(next.code_point);
    if (!byte.has_value()) return std::nullopt;
    bytes += static_cast<char>(*byte);
    spelling.remove_prefix(next.length);
  }
  return bytes;
}

}  // namespace gatehouse
