#ifndef GATEHOUSE_CLIENT_PAGE_TEMPLATE_H_
#define GATEHOUSE_CLIENT_PAGE_TEMPLATE_H_

namespace gatehouse::client {

// report.html with its styles and scripts in it, and "{{report}}" where a report's JSON
// goes; embed.cmake writes the definitions.
extern const char kReportPageTemplate[];
// The same with live.js, which may ask the page's own server.
extern const char kLivePageTemplate[];

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_PAGE_TEMPLATE_H_
