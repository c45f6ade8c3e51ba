#ifndef GATEHOUSE_CLIENT_UTF8_H_
#define GATEHOUSE_CLIENT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gatehouse::client {

// What stands at the start of some bytes.
struct Utf8Step {
  // Bytes of the character, or of the maximal part of one that is to be shown as a
  // single U+FFFD (the Unicode standard's and Python's rule).  0 at the end.
  size_t length = 0;
  bool valid = false;
  // The bytes end before the character does, and were right so far.
  bool incomplete = false;
  char32_t code_point = 0;  // where valid
};

Utf8Step NextUtf8(std::string_view bytes);

// Offset of the first byte that is not part of a whole, valid character; npos where
// all is valid.  A text that ends in the middle of a character is invalid there.
size_t FindInvalidUtf8(std::string_view bytes);

// The text with each broken part replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Checks a long text chunk by chunk.
class Utf8Checker {
 public:
  // False, for good, once something invalid came.
  bool Feed(std::string_view chunk);
  // False also where the text ended in the middle of a character.
  bool Finish();
  // Offset in the whole text of the first invalid byte, once one came.
  uint64_t invalid_offset() const { return offset_; }

 private:
  std::string carry_;  // the beginning of a character that the next chunk completes
  uint64_t offset_ = 0;
  bool valid_ = true;
};

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_UTF8_H_
