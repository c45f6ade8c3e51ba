#ifndef GATEHOUSE_CLIENT_LOAD_LOAD_REPORT_H_
#define GATEHOUSE_CLIENT_LOAD_LOAD_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "client/load/figures.h"
#include "client/load/load_run.h"
#include "gatehouse/v1/models.pb.h"
#include "gatehouse/v1/reports.pb.h"

namespace gatehouse::client {

// What a reader of the report needs to do it again.
struct LoadProtocol {
  std::string created;   // RFC 3339
  std::string workload;  // such as "a closed loop of 8"
  bool open_loop = false;
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> notes;  // beside those that hold for every load
};

// A load as a report, in the form of an experiment's: tables `summary`, `latency`, `errors` (where there are
// some), `routing`, and for the plots `distribution` and `timeline`.
v1::Report MakeLoadReport(const v1::DescribeModelResponse& model, const LoadResult& result, const LoadFigures& figures,
                          const LoadProtocol& protocol);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_LOAD_LOAD_REPORT_H_
