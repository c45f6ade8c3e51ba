#ifndef GATEHOUSE_SERVER_TELEMETRY_GAUGES_H_
#define GATEHOUSE_SERVER_TELEMETRY_GAUGES_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace gatehouse {

class ModelCatalog;
class Scheduler;

// What is read when the page is made: load, memory, and which models, calibrations and
// build this is.  `scheduler` may be null.
std::vector<prometheus::MetricFamily> ReadGauges(const ModelCatalog& catalog, const Scheduler* scheduler,
                                                 const std::string& version);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TELEMETRY_GAUGES_H_
