#ifndef GATEHOUSE_CLIENT_CLI_TERMINAL_H_
#define GATEHOUSE_CLIENT_CLI_TERMINAL_H_

#include <ostream>
#include <string>
#include <string_view>

namespace gatehouse::cli {

// How a piece of text looks, in the 256 colours of terminals; −1 is the terminal's own.
struct Style {
  int foreground = -1;
  int background = -1;
  bool bold = false;
  bool dim = false;
};

inline constexpr Style kPlain;
inline constexpr Style kDim{.dim = true};
inline constexpr Style kBold{.bold = true};
inline constexpr Style kGood{.foreground = 71};
inline constexpr Style kBad{.foreground = 203};

// Where a command writes.  Not thread-safe.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  bool out_color = false;
  bool err_color = false;
  int width = 80;  // columns

  // `text` in that style, where `out` is to be coloured.
  std::string Paint(const Style& style, std::string_view text) const;
  // The same for `err`.
  std::string PaintError(const Style& style, std::string_view text) const;
};

// Columns that UTF-8 text takes; wide characters take two, combining ones none.
int DisplayWidth(std::string_view utf8);

// `text` followed (or preceded) by blanks up to `width` columns.
std::string PadRight(std::string_view text, int width);
std::string PadLeft(std::string_view text, int width);

// `text` cut to `width` columns; "…" shows that something is missing.
std::string Truncate(std::string_view text, int width);

// What a model wrote must not drive the terminal: control characters, and those that
// reorder text, become visible escapes such as \x1b.  Newlines and tabs stay.
std::string EscapeControls(std::string_view utf8);

// For text that must stay on one line: newlines become ⏎ and tabs →.
std::string OneLine(std::string_view utf8);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_TERMINAL_H_
