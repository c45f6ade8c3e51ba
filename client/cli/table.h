#ifndef GATEHOUSE_CLIENT_CLI_TABLE_H_
#define GATEHOUSE_CLIENT_CLI_TABLE_H_

#include <string>
#include <vector>

#include "client/cli/terminal.h"

namespace gatehouse::cli {

// Rows under a dim heading, columns as wide as their widest cell.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  // numbers
  };
  struct Cell {
    std::string text;
    Style style;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column.
  void Add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  void Print(const Terminal& terminal, int indent = 0) const;
  // The same where it may be wider than the terminal: the columns that do not fit follow
  // below, beside the first `keys` columns again.
  void PrintFolded(const Terminal& terminal, int indent, size_t keys) const;

 private:
  std::vector<int> Widths() const;
  void PrintColumns(const Terminal& terminal, int indent, const std::vector<int>& widths,
                    const std::vector<size_t>& shown) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_TABLE_H_
