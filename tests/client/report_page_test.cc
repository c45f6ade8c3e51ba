#include "client/page/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <string_view>

namespace gatehouse::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kOpening = "<script type=\"application/json\" id=\"report\">";

// What a browser takes for the report: all up to the first end of a script.
std::string DataOf(const std::string& page) {
  const size_t begin = page.find(kOpening) + kOpening.size();
  return page.substr(begin, page.find("</script", begin) - begin);
}

int Count(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(ReportPage, HoldsTheReportUnchanged) {
  const nlohmann::json report = {{"title", "Größe & \"Maß\" \\ 歪 🙂"},
                                 {"notes", {"a<b", "c>d", "{{report}}", "{{script}}"}}};
  EXPECT_EQ(nlohmann::json::parse(DataOf(RenderReportPage(report.dump()))), report);
}

TEST(ReportPage, LetsNoTextEndItsScriptOrOpenAnother) {
  const nlohmann::json report = {{"title", "</script><script>alert(1)</script>"},
                                 {"summary", "<!-- <script"},
                                 {"kind", "</SCRIPT >"},
                                 {"model", "]]>"}};
  const std::string page = RenderReportPage(report.dump());
  const std::string data = DataOf(page);
  EXPECT_EQ(nlohmann::json::parse(data), report);
  EXPECT_THAT(data, Not(HasSubstr("<")));
  EXPECT_EQ(Count(page, "<script"), 2);
  EXPECT_EQ(Count(page, "</script"), 2);
}

TEST(ReportPage, EscapesTheLineSeparatorsOfUnicode) {
  const nlohmann::json report = {{"title", "a\u2028b\u2029c\u2027\u202a"}};
  const std::string data = DataOf(RenderReportPage(report.dump()));
  EXPECT_THAT(data, HasSubstr("a\\u2028b\\u2029c\u2027\u202a"));
  EXPECT_EQ(nlohmann::json::parse(data), report);
}

TEST(ReportPage, IsCompleteInItself) {
  const std::string page = RenderReportPage("{}");
  EXPECT_THAT(page,
              HasSubstr("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"));
  EXPECT_THAT(page, HasSubstr("renderers"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
  // No element and no style fetches a thing; the one address is a name, that of SVG.
  EXPECT_FALSE(std::regex_search(page, std::regex(R"re(\b(src|srcset|action|data)=["'])re")));
  EXPECT_FALSE(std::regex_search(page, std::regex(R"re(<link(?! rel="icon" href="data:,">))re")));
  EXPECT_FALSE(std::regex_search(page, std::regex(R"(@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\()")));
  EXPECT_EQ(Count(page, "://"), 1);
  EXPECT_EQ(Count(page, "http://www.w3.org/2000/svg"), 1);
}

TEST(ReportPage, NeverTakesTextForMarkup) {
  EXPECT_FALSE(
      std::regex_search(RenderReportPage("{}"),
                        std::regex(R"(innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function)")));
}

TEST(LivePage, MayAskItsOwnServerAndNobodyElse) {
  const std::string page = RenderLivePage(R"({"title": "</script>"})");
  EXPECT_THAT(page, HasSubstr("img-src data:; connect-src 'self'; base-uri 'none'"));
  EXPECT_THAT(page, HasSubstr("fetch('trace'"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
  EXPECT_EQ(Count(page, "</script"), 2);
  EXPECT_EQ(Count(page, "://"), 1);
  EXPECT_FALSE(
      std::regex_search(page, std::regex(R"(innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b)")));
  EXPECT_THAT(RenderReportPage("{}"), Not(HasSubstr("connect-src")));
}

TEST(ReportPage, TakesAnyText) {
  EXPECT_THAT(RenderReportPage(""), HasSubstr("id=\"report\"></script>"));
  EXPECT_EQ(Count(RenderReportPage("no JSON </script> at all"), "</script"), 2);
}

}  // namespace
}  // namespace gatehouse::client
