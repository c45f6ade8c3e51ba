#ifndef GATEHOUSE_CLIENT_CLI_TOP_VIEW_H_
#define GATEHOUSE_CLIENT_CLI_TOP_VIEW_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/monitor/server_metrics.h"

namespace gatehouse::cli {

// One server as it was at a moment.
struct ReplicaView {
  std::string address;
  absl::Status status;  // why it could not be asked; OK otherwise
  std::string version;
  double heartbeat_age = 0;
  double resident_bytes = 0;
  double running = 0, waiting = 0, tokens_per_second = 0;
};

// A model, summed over the servers.
struct ModelView {
  int replicas = 0;
  client::ModelMetrics now;     // gauges, and counters since the servers' start
  client::ModelMetrics recent;  // counters of the last `seconds`
};

struct TopView {
  absl::Time time;
  double seconds = 0;  // that `recent` spans
  std::vector<ReplicaView> replicas;
  std::map<std::string, ModelView> models;
};

Json ToJson(const TopView& view);
// A screen: every model with its layers, then the servers where there are several or one is down.
void PrintScreen(const Terminal& terminal, const TopView& view);
// One line a model, and one a server that is down.
void PrintLines(const Terminal& terminal, const TopView& view);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_TOP_VIEW_H_
