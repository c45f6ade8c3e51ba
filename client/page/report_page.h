#ifndef GATEHOUSE_CLIENT_PAGE_REPORT_PAGE_H_
#define GATEHOUSE_CLIENT_PAGE_REPORT_PAGE_H_

#include <string>

namespace gatehouse::client {

// The HTML page that shows a report: one file that holds its styles, its program and its
// data, and loads nothing else.  `report_json` is what the program `gatehouse` prints of
// a report (docs/client.md); text in it is shown, never run.  JSON that cannot be read
// gives a page that says so.  Any thread may call it.
std::string RenderReportPage(const std::string& report_json);

// The server's live page, of the same parts: its section of kind "live" has the form that
// starts a generation (server/page/), and may ask the server it came from, nobody else.
std::string RenderLivePage(const std::string& report_json);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_PAGE_REPORT_PAGE_H_
