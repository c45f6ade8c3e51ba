#include "server/serving/report_json.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<ReportPlot::Kind, std::string_view>, 3> kPlotKinds = {{
    {ReportPlot::Kind::kLine, "line"},
    {ReportPlot::Kind::kBar, "bar"},
    {ReportPlot::Kind::kScatter, "scatter"},
}};

// ---- To JSON

template <typename Values, typename Convert>
Json ArrayOf(const Values& values, const Convert& convert) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(convert(value));
  return array;
}

Json ColumnJson(const ReportColumn& column) {
  Json values = std::visit(
      [](const auto& cells) {
        return ArrayOf(cells, [](const auto& cell) {
          if constexpr (std::is_same_v<std::decay_t<decltype(cell)>, double>) {
            if (!std::isfinite(cell)) return Json();
          }
          return Json(cell);
        });
      },
      column.cells);
  return {{"name", column.name}, {"description", column.description}, {"values", std::move(values)}};
}

Json TableJson(const ReportTable& table) {
  return {{"name", table.name},
          {"title", table.title},
          {"description", table.description},
          {"columns", ArrayOf(table.columns, ColumnJson)}};
}

Json PlotJson(const ReportPlot& plot) {
  std::string_view kind;
  for (const auto& [value, name] : kPlotKinds) {
    if (value == plot.kind) kind = name;
  }
  return {{"kind", kind},          {"title", plot.title}, {"caption", plot.caption}, {"table", plot.table},
          {"x", plot.x},           {"y", plot.y},         {"low", plot.low},         {"high", plot.high},
          {"series", plot.series}, {"label", plot.label}, {"log_x", plot.log_x},     {"log_y", plot.log_y}};
}

// ---- From JSON

// Reads the fields of an object; remembers the first that is not what it must be.
class Reader {
 public:
  Reader(const Json& json, std::string what) : json_(json), what_(std::move(what)) {
    if (!json.is_object()) Fail("is no object");
  }

  template <typename T>
  void Read(const char* field, T& value) {
    if (!status_.ok()) return;
    const auto found = json_.find(field);
    if (found == json_.end()) return;
    if constexpr (std::is_same_v<T, std::string>) {
      if (!found->is_string()) return Fail(StrCat("has a wrong ", field));
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!found->is_boolean()) return Fail(StrCat("has a wrong ", field));
    } else {
      if (!found->is_number_integer()) return Fail(StrCat("has a wrong ", field));
    }
    value = found->template get<T>();
  }

  // Calls `read` with each entry of an array; it returns a Status.
  template <typename ReadEntry>
  void ReadEach(const char* field, const ReadEntry& read) {
    if (!status_.ok()) return;
    const auto found = json_.find(field);
    if (found == json_.end()) return;
    if (!found->is_array()) return Fail(StrCat("has wrong ", field));
    for (const Json& entry : *found) {
      status_ = read(entry);
      if (!status_.ok()) return;
    }
  }

  absl::Status status() const { return status_; }
  void Fail(std::string_view why) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(StrCat(what_, " ", why));
  }

 private:
  const Json& json_;
  const std::string what_;
  absl::Status status_;
};

absl::Status ReadColumn(const Json& json, ReportColumn& column) {
  Reader reader(json, "a column");
  reader.Read("name", column.name);
  reader.Read("description", column.description);
  std::vector<double> numbers;
  std::vector<std::string> strings;
  size_t cells = 0;
  reader.ReadEach("values", [&](const Json& cell) {
    ++cells;
    if (cell.is_string()) {
      strings.push_back(cell.get<std::string>());
    } else if (cell.is_number() || cell.is_null()) {
      numbers.push_back(cell.is_null() ? std::numeric_limits<double>::quiet_NaN() : cell.get<double>());
    }
    return absl::OkStatus();
  });
  if (strings.size() != cells && numbers.size() != cells) reader.Fail("mixes numbers and text");
  if (!strings.empty()) {
    column.cells = std::move(strings);
  } else {
    column.cells = std::move(numbers);
  }
  return reader.status();
}

absl::Status ReadTable(const Json& json, ReportTable& table) {
  Reader reader(json, "a table");
  reader.Read("name", table.name);
  reader.Read("title", table.title);
  reader.Read("description", table.description);
  reader.ReadEach("columns", [&](const Json& entry) { return ReadColumn(entry, table.columns.emplace_back()); });
  return reader.status();
}

absl::Status ReadPlot(const Json& json, ReportPlot& plot) {
  Reader reader(json, "a plot");
  std::string kind;
  reader.Read("kind", kind);
  reader.Read("title", plot.title);
  reader.Read("caption", plot.caption);
  reader.Read("table", plot.table);
  reader.Read("x", plot.x);
  reader.Read("y", plot.y);
  reader.Read("low", plot.low);
  reader.Read("high", plot.high);
  reader.Read("series", plot.series);
  reader.Read("label", plot.label);
  reader.Read("log_x", plot.log_x);
  reader.Read("log_y", plot.log_y);
  bool known = false;
  for (const auto& [value, name] : kPlotKinds) {
    if (name != kind) continue;
    plot.kind = value;
    known = true;
  }
  if (!known) reader.Fail("has an unknown kind");
  return reader.status();
}

absl::Status ReadCorpus(const Json& json, ReportCorpus& corpus) {
  Reader reader(json, "a corpus");
  reader.Read("label", corpus.label);
  reader.Read("sha256", corpus.sha256);
  reader.Read("tokens", corpus.tokens);
  return reader.status();
}

absl::Status ReadSetting(const Json& json, std::pair<std::string, std::string>& setting) {
  Reader reader(json, "a setting");
  reader.Read("name", setting.first);
  reader.Read("value", setting.second);
  return reader.status();
}

// ---- Checks

size_t Rows(const ReportColumn& column) {
  return std::visit([](const auto& cells) { return cells.size(); }, column.cells);
}

absl::Status CheckTable(const ReportTable& table) {
  std::set<std::string> names;
  for (const ReportColumn& column : table.columns) {
    if (column.name.empty() || !names.insert(column.name).second) {
      return absl::InvalidArgumentError(
          StrCat("table ", table.name, " has two columns named '", column.name, "', or one without a name"));
    }
    if (Rows(column) != Rows(table.columns.front())) {
      return absl::InvalidArgumentError(StrCat("column ", table.name, ".", column.name, " has ", Rows(column),
                                               " rows, others have ", Rows(table.columns.front())));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlot(const ReportPlot& plot, const Report& report) {
  std::set<std::string> columns;
  bool found = false;
  for (const ReportTable& table : report.tables) {
    if (table.name != plot.table) continue;
    found = true;
    for (const ReportColumn& column : table.columns) columns.insert(column.name);
  }
  if (!found) {
    return absl::InvalidArgumentError(
        StrCat("plot '", plot.title, "' shows table '", plot.table, "', which is not there"));
  }
  for (const std::string& name : {plot.x, plot.y}) {
    if (!columns.contains(name)) {
      return absl::InvalidArgumentError(
          StrCat("plot '", plot.title, "' shows column '", name, "', which is not there"));
    }
  }
  for (const std::string& name : {plot.low, plot.high, plot.series, plot.label}) {
    if (!name.empty() && !columns.contains(name)) {
      return absl::InvalidArgumentError(
          StrCat("plot '", plot.title, "' shows column '", name, "', which is not there"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ReportToJson(const Report& report) {
  const Json json = {
      {"kind", report.kind},
      {"title", report.title},
      {"summary", report.summary},
      {"model", report.model},
      {"model_fingerprint", report.model_fingerprint},
      {"dtype", report.dtype},
      {"created", report.created},
      {"corpora", ArrayOf(report.corpora,
                          [](const ReportCorpus& corpus) {
                            return Json{{"label", corpus.label}, {"sha256", corpus.sha256}, {"tokens", corpus.tokens}};
                          })},
      {"settings", ArrayOf(report.settings,
                           [](const auto& setting) {
                             return Json{{"name", setting.first}, {"value", setting.second}};
                           })},
      {"notes", ArrayOf(report.notes, [](const std::string& note) { return Json(note); })},
      {"tables", ArrayOf(report.tables, TableJson)},
      {"plots", ArrayOf(report.plots, PlotJson)},
  };
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Report> ReportFromJson(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  Report report;
  Reader reader(parsed, "the report");
  reader.Read("kind", report.kind);
  reader.Read("title", report.title);
  reader.Read("summary", report.summary);
  reader.Read("model", report.model);
  reader.Read("model_fingerprint", report.model_fingerprint);
  reader.Read("dtype", report.dtype);
  reader.Read("created", report.created);
  reader.ReadEach("corpora", [&](const Json& entry) { return ReadCorpus(entry, report.corpora.emplace_back()); });
  reader.ReadEach("settings", [&](const Json& entry) { return ReadSetting(entry, report.settings.emplace_back()); });
  reader.ReadEach("notes", [&](const Json& entry) {
    if (!entry.is_string()) return absl::InvalidArgumentError("a note is no text");
    report.notes.push_back(entry.get<std::string>());
    return absl::OkStatus();
  });
  reader.ReadEach("tables", [&](const Json& entry) { return ReadTable(entry, report.tables.emplace_back()); });
  reader.ReadEach("plots", [&](const Json& entry) { return ReadPlot(entry, report.plots.emplace_back()); });
  GH_RETURN_IF_ERROR(reader.status());
  GH_RETURN_IF_ERROR(CheckReport(report));
  return report;
}

absl::Status CheckReport(const Report& report) {
  std::set<std::string> names;
  for (const ReportTable& table : report.tables) {
    if (table.name.empty() || !names.insert(table.name).second) {
      return absl::InvalidArgumentError(StrCat("two tables are named '", table.name, "', or one has no name"));
    }
    GH_RETURN_IF_ERROR(CheckTable(table));
  }
  for (const ReportPlot& plot : report.plots) GH_RETURN_IF_ERROR(CheckPlot(plot, report));
  return absl::OkStatus();
}

}  // namespace gatehouse
