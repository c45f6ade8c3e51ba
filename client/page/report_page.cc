#include "client/page/report_page.h"

#include <string>
#include <string_view>

#include "client/page/template.h"

namespace gatehouse::client {
namespace {

constexpr std::string_view kPlaceholder = "{{report}}";

// JSON that ends no script element and no line of a script.  '<', '>', '&' and the two
// line separators of Unicode occur only in JSON's strings, where an escape means the same.
std::string EscapeForScript(std::string_view json) {
  std::string escaped;
  escaped.reserve(json.size() + json.size() / 64);
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string_view rest = json.substr(i);
    if (rest.starts_with("\u2028") || rest.starts_with("\u2029")) {
      escaped += rest.starts_with("\u2028") ? "\\u2028" : "\\u2029";
      i += 2;
      continue;
    }
    switch (json[i]) {
      case '<':
        escaped += "\\u003c";
        break;
      case '>':
        escaped += "\\u003e";
        break;
      case '&':
        escaped += "\\u0026";
        break;
      default:
        escaped += json[i];
    }
  }
  return escaped;
}

std::string Fill(std::string page, const std::string& json) {
  return page.replace(page.find(kPlaceholder), kPlaceholder.size(), EscapeForScript(json));
}

}  // namespace

std::string RenderReportPage(const std::string& report_json) { return Fill(kReportPageTemplate, report_json); }
std::string RenderLivePage(const std::string& report_json) { return Fill(kLivePageTemplate, report_json); }

}  // namespace gatehouse::client
