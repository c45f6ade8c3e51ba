#include "client/cli/report_view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/render.h"
#include "client/cli/table.h"
#include "client/page/report_page.h"

namespace gatehouse::cli {
namespace {

constexpr char kArraysFile[] = "arrays.npz";
constexpr int kMaxCellWidth = 40;

// Four significant digits, without an exponent where it is not needed.
std::string NumberCell(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size == 0) return "0";
  char text[64];
  if (size < 1e-4 || size >= 1e9) {
    std::snprintf(text, sizeof(text), "%.3e", value);
    return text;
  }
  const int digits = 3 - static_cast<int>(std::floor(std::log10(size)));
  return Fixed(value, std::clamp(digits, 0, 8));
}

bool AllWhole(const google::protobuf::RepeatedField<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) {
    return !std::isfinite(value) || (value == std::floor(value) && std::abs(value) < 1e15);
  });
}

int RowsOf(const v1::ReportColumn& column) {
  return column.has_strings() ? column.strings().values_size() : column.numbers().values_size();
}

// Words on lines of at most `width` columns.
std::vector<std::string> Wrapped(const std::string& text, int width) {
  std::vector<std::string> lines;
  std::string line;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find_first_of(" \n", begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && DisplayWidth(line) + 1 + DisplayWidth(word) > width) {
      lines.push_back(line);
      line.clear();
    }
    if (!word.empty()) line += (line.empty() ? "" : " ") + word;
    if (end < text.size() && text[end] == '\n') {
      lines.push_back(line);
      line.clear();
    }
    begin = end + 1;
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

// A column of a table, as text.
struct ShownColumn {
  std::string name;
  bool numbers = false, whole = false;
  bool constant = true;  // the same in every row
  std::vector<std::string> cells;
};

// NaN is like NaN here.
bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

ShownColumn ShowColumn(const v1::ReportColumn& column, size_t rows) {
  ShownColumn shown;
  shown.name = OneLine(column.name());
  shown.numbers = !column.has_strings();
  shown.whole = shown.numbers && AllWhole(column.numbers().values());
  const auto& numbers = column.numbers().values();
  const auto& strings = column.strings().values();
  for (int row = 0; row < RowsOf(column); ++row) {
    shown.constant = shown.constant && (shown.numbers ? Same(numbers[row], numbers[0]) : strings[row] == strings[0]);
    if (static_cast<size_t>(row) >= rows) continue;
    shown.cells.push_back(!shown.numbers ? Truncate(OneLine(strings[row]), kMaxCellWidth)
                          : shown.whole  ? Fixed(numbers[row], 0)
                                         : NumberCell(numbers[row]));
  }
  return shown;
}

// Rows are told apart by the columns of text that come first, and the whole number after
// them, such as a layer; else by the first column.
size_t KeysOf(const std::vector<ShownColumn>& columns) {
  size_t keys = 0;
  while (keys < columns.size() && !columns[keys].numbers) ++keys;
  if (keys < columns.size() && (columns[keys].whole || keys == 0)) ++keys;
  return keys;
}

void PrintTable(const Terminal& terminal, const v1::ReportTable& table, size_t rows) {
  terminal.out << "\n" << terminal.Paint(kBold, OneLine(table.title().empty() ? table.name() : table.title())) << "\n";
  PrintText(terminal, kDim, table.description(), "", "");
  size_t count = table.columns_size() == 0 ? 0 : static_cast<size_t>(RowsOf(table.columns(0)));
  for (const v1::ReportColumn& column : table.columns()) count = std::min(count, static_cast<size_t>(RowsOf(column)));
  const size_t shown = rows == 0 ? count : std::min(rows, count);
  if (count == 0) {
    PrintText(terminal, kDim, "no rows", "  ", "  ");
    return;
  }
  std::vector<ShownColumn> columns;
  std::vector<std::string> constants;  // said once, above
  for (const v1::ReportColumn& column : table.columns()) {
    ShownColumn next = ShowColumn(column, shown);
    if (shown > 1 && next.constant) {
      constants.push_back(next.name + " " + next.cells[0]);
    } else {
      columns.push_back(std::move(next));
    }
  }
  if (!constants.empty()) PrintText(terminal, kPlain, "in every row: " + Joined(constants), "  ", "  ");
  std::vector<Table::Column> titles;
  for (const ShownColumn& column : columns) titles.push_back({column.name, column.numbers});
  Table view(std::move(titles));
  for (size_t row = 0; row < shown; ++row) {
    std::vector<Table::Cell> cells;
    for (const ShownColumn& column : columns) cells.push_back({column.cells[row], kPlain});
    view.Add(std::move(cells));
  }
  if (!columns.empty()) view.PrintFolded(terminal, 2, KeysOf(columns));
  if (shown < count) {
    terminal.out << terminal.Paint(kDim, "  … " + Count(count - shown, "more row") + "; --rows 0 shows all") << "\n";
  }
}

}  // namespace

void ReportFlags::Add(CLI::App& app) {
  constexpr char kGroup[] = "Output";
  app.add_option("--html", html, "Write the report as a page with plots")
      ->check(NotEmpty())
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--npz", npz, "Write its arrays and columns for numpy")
      ->check(NotEmpty())
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--rows", rows, "Print at most this many rows of a table; 0: all")
      ->capture_default_str()
      ->group(kGroup);
}

absl::Status CheckOutputs(const ReportFlags& flags) {
  for (const std::string* path : {&flags.html, &flags.npz}) {
    if (path->empty()) continue;
    if (absl::Status status = CheckWritable(*path); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Report> TakeReport(Session& session, const std::string& name, const ReportFlags& flags) {
  auto report = session.client.GetReport(name, session.call);
  if (!report.ok()) return report;
  if (!flags.html.empty()) {
    const std::string page = client::RenderReportPage(ToJson(*report).dump());
    if (absl::Status status = WriteToFile(flags.html, page); !status.ok()) return status;
  }
  if (!flags.npz.empty()) {
    const auto size = FetchToFile(session, name, kArraysFile, flags.npz);
    if (!size.ok()) return size.status();
  }
  return report;
}

absl::StatusOr<int> ShowReport(Session& session, const std::string& name, const ReportFlags& flags) {
  if (absl::Status status = CheckOutputs(flags); !status.ok()) return status;
  const auto report = TakeReport(session, name, flags);
  if (!report.ok()) return report.status();
  if (session.json) {
    session.Print(ToJson(*report));
  } else {
    PrintReport(session.terminal, *report, flags.rows);
  }
  return kExitOk;
}

void PrintText(const Terminal& terminal, const Style& style, const std::string& text, const std::string& first,
               const std::string& rest) {
  const int width = std::max(20, terminal.width - DisplayWidth(first));
  bool at_first = true;
  for (const std::string& line : Wrapped(EscapeControls(text), width)) {
    terminal.out << terminal.Paint(style, (at_first ? first : rest) + line) << "\n";
    at_first = false;
  }
}

void PrintReport(const Terminal& terminal, const v1::Report& report, size_t rows) {
  terminal.out << terminal.Paint(kBold, OneLine(report.title().empty() ? report.kind() : report.title())) << "\n";
  PrintText(terminal, kPlain, report.summary(), "", "");
  for (const v1::ReportTable& table : report.tables()) PrintTable(terminal, table, rows);
  if (report.notes_size() > 0) terminal.out << "\n";
  for (const std::string& note : report.notes()) PrintText(terminal, kPlain, note, "• ", "  ");
  terminal.out << "\n";
  std::vector<std::string> protocol = {OneLine(report.model()), OneLine(report.dtype())};
  for (const v1::ReportCorpus& corpus : report.corpora()) {
    protocol.push_back(OneLine(corpus.label()) + " (" + Count(corpus.tokens(), "token") + ")");
  }
  for (const v1::ReportSetting& setting : report.settings()) {
    protocol.push_back(OneLine(setting.name()) + " " + OneLine(setting.value()));
  }
  PrintText(terminal, kDim, Joined(protocol), "", "");
}

}  // namespace gatehouse::cli
