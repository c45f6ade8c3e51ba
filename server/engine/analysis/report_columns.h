#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_REPORT_COLUMNS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_REPORT_COLUMNS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/engine/analysis/statistics.h"
#include "server/engine/report.h"

namespace gatehouse {

// A column of a report from the rows of a method: `cell` takes a row and gives a number or a
// text.
//
//   ColumnOf(rows, "layer", "index of the layer", [](const Row& row) { return row.layer; })
template <typename Row, typename Cell>
ReportColumn ColumnOf(const std::vector<Row>& rows, std::string name, std::string description, const Cell& cell) {
  using Value = std::invoke_result_t<const Cell&, const Row&>;
  using Stored = std::conditional_t<std::is_arithmetic_v<std::decay_t<Value>>, double, std::string>;
  std::vector<Stored> cells;
  cells.reserve(rows.size());
  for (const Row& row : rows) cells.emplace_back(cell(row));
  return {std::move(name), std::move(description), std::move(cells)};
}

// A table of a report from the rows of a method, column by column.
//
//   TableOf(rows, "layers", "Cost of each layer", "…")
//       .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
//       .AddInterval("cost", "relative change of perplexity", [](const Row& row) { return row.cost; })
//       .Build();
template <typename Row>
class TableOf {
 public:
  // `rows` outlives this.
  TableOf(const std::vector<Row>& rows, std::string name, std::string title, std::string description)
      : rows_(rows), table_{std::move(name), std::move(title), std::move(description), {}} {}

  template <typename Cell>
  TableOf& Add(std::string name, std::string description, const Cell& cell) {
    table_.columns.push_back(ColumnOf(rows_, std::move(name), std::move(description), cell));
    return *this;
  }
  // `cell` gives an Interval: three columns, `name`, `name`_low and `name`_high.
  template <typename Cell>
  TableOf& AddInterval(const std::string& name, std::string description, const Cell& cell) {
    Add(name, std::move(description), [&](const Row& row) { return Interval(cell(row)).estimate; });
    Add(name + "_low", "lower end of its 95 % interval", [&](const Row& row) { return Interval(cell(row)).low; });
    return Add(name + "_high", "upper end of its 95 % interval",
               [&](const Row& row) { return Interval(cell(row)).high; });
  }
  ReportTable Build() { return std::move(table_); }

 private:
  const std::vector<Row>& rows_;
  ReportTable table_;
};

// A tensor as an array of a report; floating point as float32, everything else as int64.
ReportArray ArrayOf(std::string name, const at::Tensor& tensor);

// 0.0123 → "+1.23 %".
std::string SignedPercent(double share);
// 0.0123 → "+1.23 %", with its interval: "+1.23 % [+0.50 %, +2.00 %]".
std::string SignedPercent(const Interval& interval);
// 0.123 → "12.3 %".
std::string Percent(double share);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_REPORT_COLUMNS_H_
