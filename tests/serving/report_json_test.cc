#include "server/serving/report_json.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Report Example() {
  Report report;
  report.kind = "gate_sweep";
  report.title = "Gates";
  report.summary = "Two \"gates\"\nand a café.";
  report.model = "m";
  report.model_fingerprint = "sha256:1";
  report.dtype = "float32";
  report.created = "2026-01-01T00:00:00Z";
  report.corpora = {{"novel.txt", "abc", 12345}};
  report.settings = {{"seed", "7"}, {"window", "512"}};
  report.notes = {"first", "second"};
  report.tables = {{"gates",
                    "Gates",
                    "one row a gate",
                    {{"gate", "its kind", std::vector<std::string>{"logistic", "pca"}},
                     {"cost", "relative", std::vector<double>{0.1, std::nan("")}}}}};
  report.plots = {{.kind = ReportPlot::Kind::kScatter,
                   .title = "A plot",
                   .caption = "of gates",
                   .table = "gates",
                   .x = "gate",
                   .y = "cost",
                   .low = "cost",
                   .high = "cost",
                   .series = "gate",
                   .label = "gate",
                   .log_x = true,
                   .log_y = false}};
  return report;
}

TEST(ReportJson, ComesBackAsItWas) {
  const auto report = ReportFromJson(ReportToJson(Example()));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(ReportToJson(*report), ReportToJson(Example()));
  EXPECT_EQ(report->summary, "Two \"gates\"\nand a café.");
  EXPECT_EQ(report->corpora[0].tokens, 12345);
  EXPECT_EQ(report->settings[1], std::pair(std::string("window"), std::string("512")));
  EXPECT_THAT(report->notes, ElementsAre("first", "second"));
  const ReportTable& table = report->tables[0];
  EXPECT_THAT(std::get<std::vector<std::string>>(table.columns[0].cells), ElementsAre("logistic", "pca"));
  const auto& costs = std::get<std::vector<double>>(table.columns[1].cells);
  EXPECT_EQ(costs[0], 0.1);
  EXPECT_TRUE(std::isnan(costs[1]));
  EXPECT_EQ(report->plots[0].kind, ReportPlot::Kind::kScatter);
  EXPECT_TRUE(report->plots[0].log_x);
}

TEST(ReportJson, WritesNullForNumbersThatJsonDoesNotHave) {
  Report report;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  report.tables = {{"t", "", "", {{"x", "", std::vector<double>{std::nan(""), kInfinity, -kInfinity, 1.5}}}}};
  EXPECT_THAT(ReportToJson(report), HasSubstr(R"("values":[null,null,null,1.5])"));
}

TEST(ReportJson, WritesTextThatIsNotUtf8AsWellAsItCan) {
  Report report;
  report.title = "a\xFF";
  EXPECT_EQ(ReportFromJson(ReportToJson(report))->title, "a\xEF\xBF\xBD");
}

TEST(ReportJson, RefusesWhatIsNoReport) {
  for (const char* json : {"", "[]", "{", R"({"title": 1})", R"({"notes": ["a", 2]})", R"({"tables": {}})",
                           R"({"tables": [7]})", R"({"plots": [{"kind": "pie"}]})", R"({"corpora": [{"tokens": 1.5}]})",
                           R"({"tables": [{"name": "t", "columns": [{"name": "x", "values": [1, "a"]}]}]})",
                           R"({"tables": [{"name": "t", "columns": [{"name": "x", "values": [true]}]}]})"}) {
    EXPECT_THAT(ReportFromJson(json), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(""))) << json;
  }
}

TEST(ReportJson, ChecksThatNamesAreUniqueAndPlotsShowWhatIsThere) {
  const auto refused = [](auto change, const char* text) {
    Report report = Example();
    change(report);
    EXPECT_THAT(CheckReport(report), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_FALSE(ReportFromJson(ReportToJson(report)).ok());
  };
  EXPECT_TRUE(CheckReport(Example()).ok());
  refused([](Report& report) { report.tables.push_back(report.tables[0]); }, "two tables are named 'gates'");
  refused([](Report& report) { report.tables[0].columns[1].name = "gate"; }, "two columns named 'gate'");
  refused([](Report& report) { report.tables[0].columns[0].cells = std::vector<double>{1}; }, "has 2 rows");
  refused([](Report& report) { report.plots[0].table = "other"; }, "table 'other'");
  refused([](Report& report) { report.plots[0].x = "none"; }, "column 'none'");
  refused([](Report& report) { report.plots[0].y = ""; }, "column ''");
  refused([](Report& report) { report.plots[0].low = "none"; }, "column 'none'");
}

}  // namespace
}  // namespace gatehouse::testing
