#include "server/serving/utf8_stream.h"

namespace gatehouse {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::string Utf8Stream::Append(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (missing_ > 0 && !(byte >= lowest_ && byte <= highest_)) Replace(text);
    if (missing_ == 0) {
      BeginCharacter(byte, text);
      continue;
    }
    partial_.push_back(c);
    lowest_ = 0x80;
    highest_ = 0xBF;
    if (--missing_ == 0) {
      text += partial_;
      partial_.clear();
    }
  }
  return text;
}

std::string Utf8Stream::Finish() {
  std::string text;
  if (missing_ > 0) Replace(text);
  return text;
}

void Utf8Stream::Replace(std::string& text) {
  text += kReplacement;
  partial_.clear();
  missing_ = 0;
  lowest_ = 0x80;
  highest_ = 0xBF;
  well_formed_ = false;
}

// The second byte's bounds leave out overlong forms, surrogates and what lies beyond
// U+10FFFF (Unicode, table 3-7).
void Utf8Stream::BeginCharacter(uint8_t byte, std::string& text) {
  if (byte < 0x80) {
    text.push_back(static_cast<char>(byte));
    return;
  }
  if (byte >= 0xC2 && byte <= 0xDF) {
    missing_ = 1;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    missing_ = 2;
    if (byte == 0xE0) lowest_ = 0xA0;
    if (byte == 0xED) highest_ = 0x9F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    missing_ = 3;
    if (byte == 0xF0) lowest_ = 0x90;
    if (byte == 0xF4) highest_ = 0x8F;
  } else {
    Replace(text);
    return;
  }
  partial_.push_back(static_cast<char>(byte));
}

bool IsUtf8(std::string_view bytes) {
  Utf8Stream stream;
  stream.Append(bytes);
  stream.Finish();
  return stream.well_formed();
}

}  // namespace gatehouse
