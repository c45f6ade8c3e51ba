#ifndef GATEHOUSE_SERVER_SERVING_REPORT_JSON_H_
#define GATEHOUSE_SERVER_SERVING_REPORT_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/report.h"

namespace gatehouse {

// Reports as JSON, the form in which they are stored and in which the client prints them:
// docs/client.md documents it.  Numbers that are not finite are null, and NaN when read.

std::string ReportToJson(const Report& report);
// InvalidArgument for what is no report, or fails CheckReport.
absl::StatusOr<Report> ReportFromJson(std::string_view json);

// InvalidArgument, naming the place, unless names are unique, the columns of a table are of
// one length, and plots name tables and columns that are there.
absl::Status CheckReport(const Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_REPORT_JSON_H_
