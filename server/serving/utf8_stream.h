#ifndef GATEHOUSE_SERVER_SERVING_UTF8_STREAM_H_
#define GATEHOUSE_SERVER_SERVING_UTF8_STREAM_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace gatehouse {

// Makes whole characters of UTF-8 bytes that arrive in any pieces.  What is not UTF-8
// becomes U+FFFD, one for each maximal subpart of a character (Unicode's recommended
// practice, and what Python's decoder does).  Not thread-safe.
class Utf8Stream {
 public:
  // The characters that `bytes` completes.
  std::string Append(std::string_view bytes);
  // U+FFFD where the last character was cut, else nothing.
  std::string Finish();
  // Nothing had to be replaced so far.
  bool well_formed() const { return well_formed_; }

 private:
  void Replace(std::string& text);
  void BeginCharacter(uint8_t byte, std::string& text);

  std::string partial_;    // the bytes of the character that is not complete yet
  int missing_ = 0;        // how many more it needs
  uint8_t lowest_ = 0x80;  // the bounds of the next one
  uint8_t highest_ = 0xBF;
  bool well_formed_ = true;
};

bool IsUtf8(std::string_view bytes);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_UTF8_STREAM_H_
