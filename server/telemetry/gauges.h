#ifndef GATEHOUSE_SERVER_TELEMETRY_GAUGES_H_
#define GATEHOUSE_SERVER_TELEMETRY_GAUGES_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace gatehouse {

class ModelCatalog;
class OperationManager;
class Scheduler;

// What is read when the page is made: load, operations, memory, and which models,
// calibrations and build this is.  `scheduler` and `operations` may be null.
std::vector<prometheus::MetricFamily> ReadGauges(const ModelCatalog& catalog, const Scheduler* scheduler,
                                                 const OperationManager* operations, const std::string& version);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TELEMETRY_GAUGES_H_
