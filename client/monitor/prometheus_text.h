#ifndef GATEHOUSE_CLIENT_MONITOR_PROMETHEUS_TEXT_H_
#define GATEHOUSE_CLIENT_MONITOR_PROMETHEUS_TEXT_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse::client {

// One series of a metrics page.
struct MetricSample {
  std::map<std::string, std::string> labels;
  double value = 0;

  // Empty where there is no such label.
  const std::string& Label(const std::string& name) const;
};

// The series of a page, by name.
using MetricsPage = std::map<std::string, std::vector<MetricSample>, std::less<>>;

// Reads Prometheus' text format (version 0.0.4); comments, types and timestamps are passed over.
// InvalidArgument names the line that is not of it.  Takes at most a million series.
absl::StatusOr<MetricsPage> ParseMetrics(std::string_view text);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_MONITOR_PROMETHEUS_TEXT_H_
