#include "client/cli/table.h"

#include <algorithm>
#include <numeric>

namespace gatehouse::cli {
namespace {

constexpr int kGap = 2;

}  // namespace

void Table::Print(const Terminal& terminal, int indent) const {
  std::vector<size_t> all(columns_.size());
  std::iota(all.begin(), all.end(), 0);
  PrintColumns(terminal, indent, Widths(), all);
}

void Table::PrintFolded(const Terminal& terminal, int indent, size_t keys) const {
  const std::vector<int> widths = Widths();
  std::vector<size_t> shown;
  int width = indent;
  const auto show = [&](size_t column) {
    shown.push_back(column);
    width += widths[column] + kGap;
  };
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (shown.size() > keys && width + widths[c] > terminal.width) {
      PrintColumns(terminal, indent, widths, shown);
      terminal.out << "\n";
      shown.clear();
      width = indent;
      for (size_t key = 0; key < keys; ++key) show(key);
    }
    show(c);
  }
  PrintColumns(terminal, indent, widths, shown);
}

std::vector<int> Table::Widths() const {
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    int width = DisplayWidth(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[c].text));
    widths.push_back(width);
  }
  return widths;
}

void Table::PrintColumns(const Terminal& terminal, int indent, const std::vector<int>& widths,
                         const std::vector<size_t>& shown) const {
  const auto print_row = [&](const auto& cell_of) {
    terminal.out << std::string(static_cast<size_t>(indent), ' ');
    for (const size_t c : shown) {
      const Cell cell = cell_of(c);
      const bool last = c == shown.back();
      const std::string padded = columns_[c].right ? PadLeft(cell.text, widths[c])
                                 : last            ? cell.text
                                                   : PadRight(cell.text, widths[c]);
      terminal.out << terminal.Paint(cell.style, padded) << (last ? "\n" : std::string(kGap, ' '));
    }
  };
  print_row([&](size_t c) { return Cell{columns_[c].title, kDim}; });
  for (const auto& row : rows_) print_row([&](size_t c) { return row[c]; });
}

}  // namespace gatehouse::cli
