#include "client/cli/terminal.h"

#include <utf8proc.h>

#include <cstdio>

#include "client/utf8.h"

namespace gatehouse::cli {
namespace {

using client::NextUtf8;
using client::Utf8Step;

bool DrivesTerminal(char32_t c) {
  const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  const bool reorders = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F;
  return control || reorders;
}

std::string Escape(char32_t c) {
  char escape[16];
  std::snprintf(escape, sizeof(escape), c < 0x80 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(c));
  return escape;
}

// The text with broken parts replaced and `instead(c)` for characters where it is not empty.
template <typename Instead>
std::string Rewrite(std::string_view bytes, const Instead& instead) {
  const std::string text = client::ReplaceInvalidUtf8(bytes);
  std::string_view rest = text;
  std::string result;
  while (!rest.empty()) {
    const Utf8Step step = NextUtf8(rest);
    const std::string other = instead(step.code_point);
    result.append(other.empty() ? rest.substr(0, step.length) : std::string_view(other));
    rest.remove_prefix(step.length);
  }
  return result;
}

std::string Painted(const Style& style, std::string_view text) {
  std::string codes;
  if (style.bold) codes += ";1";
  if (style.dim) codes += ";2";
  if (style.foreground >= 0) codes += ";38;5;" + std::to_string(style.foreground);
  if (style.background >= 0) codes += ";48;5;" + std::to_string(style.background);
  if (codes.empty() || text.empty()) return std::string(text);
  return "\x1b[" + codes.substr(1) + "m" + std::string(text) + "\x1b[0m";
}

int Width(char32_t c) { return utf8proc_charwidth(static_cast<utf8proc_int32_t>(c)); }

std::string Blanks(int count) { return std::string(count > 0 ? static_cast<size_t>(count) : 0, ' '); }

}  // namespace

std::string Terminal::Paint(const Style& style, std::string_view text) const {
  return out_color ? Painted(style, text) : std::string(text);
}

std::string Terminal::PaintError(const Style& style, std::string_view text) const {
  return err_color ? Painted(style, text) : std::string(text);
}

int DisplayWidth(std::string_view utf8) {
  int width = 0;
  while (!utf8.empty()) {
    const Utf8Step step = NextUtf8(utf8);
    width += step.valid ? Width(step.code_point) : 1;
    utf8.remove_prefix(step.length);
  }
  return width;
}

std::string PadRight(std::string_view text, int width) {
  return std::string(text) + Blanks(width - DisplayWidth(text));
}

std::string PadLeft(std::string_view text, int width) { return Blanks(width - DisplayWidth(text)) + std::string(text); }

std::string Truncate(std::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  std::string result;
  int used = 0;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const int columns = step.valid ? Width(step.code_point) : 1;
    if (used + columns > width - 1) break;
    used += columns;
    result.append(text.substr(0, step.length));
    text.remove_prefix(step.length);
  }
  return result + "…";
}

std::string EscapeControls(std::string_view utf8) {
  return Rewrite(utf8, [](char32_t c) -> std::string {
    if (c == '\n' || c == '\t' || !DrivesTerminal(c)) return "";
    return Escape(c);
  });
}

std::string OneLine(std::string_view utf8) {
  return Rewrite(utf8, [](char32_t c) -> std::string {
    if (c == '\n') return "⏎";
    if (c == '\t') return "→";
    return DrivesTerminal(c) ? Escape(c) : "";
  });
}

}  // namespace gatehouse::cli
