#include "client/cli/table.h"

#include <algorithm>

namespace gatehouse::cli {

void Table::Print(const Terminal& terminal, int indent) const {
  std::vector<int> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    int width = DisplayWidth(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[c].text));
    widths.push_back(width);
  }
  const auto print_row = [&](const auto& cell_of) {
    terminal.out << std::string(static_cast<size_t>(indent), ' ');
    for (size_t c = 0; c < columns_.size(); ++c) {
      const Cell cell = cell_of(c);
      const bool last = c + 1 == columns_.size();
      const std::string padded = columns_[c].right ? PadLeft(cell.text, widths[c])
                                 : last            ? cell.text
                                                   : PadRight(cell.text, widths[c]);
      terminal.out << terminal.Paint(cell.style, padded) << (last ? "\n" : "  ");
    }
  };
  print_row([&](size_t c) { return Cell{columns_[c].title, kDim}; });
  for (const auto& row : rows_) print_row([&](size_t c) { return row[c]; });
}

}  // namespace gatehouse::cli
