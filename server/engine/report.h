#ifndef GATEHOUSE_SERVER_ENGINE_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gatehouse {

// What an experiment found: tables of named columns, and plots over them.  One shape
// for every method, so that one page shows them all and one reader takes them apart;
// proto/gatehouse/v1/reports.proto documents the fields.

struct ReportColumn {
  std::string name;         // snake_case, unique in its table
  std::string description;  // what it is, with its unit
  // One entry a row of the table; NaN where a number does not exist.
  std::variant<std::vector<double>, std::vector<std::string>> cells;
};

struct ReportTable {
  std::string name;  // snake_case, unique in the report
  std::string title;
  std::string description;
  std::vector<ReportColumn> columns;
};

struct ReportPlot {
  enum class Kind { kLine, kBar, kScatter };
  Kind kind = Kind::kLine;
  std::string title;
  std::string caption;
  // A table, and columns of it.
  std::string table;
  std::string x, y;
  std::string low, high;  // of an interval around y; empty for none
  std::string series;     // rows with the same value in it belong together; empty: all do
  std::string label;      // shown on a point; empty for none
  bool log_x = false, log_y = false;
};

struct ReportCorpus {
  std::string label;
  std::string sha256;
  int64_t tokens = 0;  // read from it
};

struct Report {
  std::string kind;     // the operation's: "linearization_cost"
  std::string title;    // for people
  std::string summary;  // a few sentences: what was found
  std::string model, model_fingerprint, dtype;
  std::string created;  // RFC 3339
  std::vector<ReportCorpus> corpora;
  // Everything else that is needed to do it again, by name: splits, window, seed.
  std::vector<std::pair<std::string, std::string>> settings;
  // What a reader has to know to take the numbers rightly.
  std::vector<std::string> notes;
  std::vector<ReportTable> tables;
  std::vector<ReportPlot> plots;
};

// Numbers too many for a table, such as one a token; they are stored as .npz beside the
// report.
struct ReportArray {
  std::string name;
  std::vector<int64_t> shape;
  std::variant<std::vector<float>, std::vector<double>, std::vector<int64_t>> values;  // row-major
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_REPORT_H_
