#ifndef GATEHOUSE_CLIENT_MONITOR_SERVER_METRICS_H_
#define GATEHOUSE_CLIENT_MONITOR_SERVER_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/monitor/http_get.h"
#include "client/monitor/prometheus_text.h"
#include "client/path_counts.h"

namespace gatehouse::client {

// A histogram's cumulative counts by upper bound.
struct MetricHistogram {
  std::map<double, double> buckets;

  void Add(const MetricHistogram& other);
  void Subtract(const MetricHistogram& earlier);
  double count() const { return buckets.empty() ? 0 : buckets.rbegin()->second; }
  // By straight lines within a bucket, as Prometheus' histogram_quantile; NaN of an empty one.
  double Quantile(double share) const;
};

// Token × layer decisions.
using LayerDecisions = PathCounts<double>;

// What a metrics page says of one model: gauges as they are, counters since the server's start.
struct ModelMetrics {
  double running = 0, waiting = 0, waiting_prompt_tokens = 0;
  double kv_used = 0, kv_capacity = 0, kv_page_bytes = 0;  // pages
  // Positions that passed through the model, of prompts and texts and of generated tokens: these count up while
  // a call runs, where the counters of calls do so at its end.
  double prompt_tokens = 0, generated_tokens = 0;
  double requests = 0, failed = 0;  // calls that ended, and those not OK or cancelled by their clients
  std::vector<LayerDecisions> layers;
  MetricHistogram first_token, inter_token, request, queue;  // seconds; the last two of generations
  std::string calibration;

  // Sums the other server's.
  void Add(const ModelMetrics& other);
  // Leaves of the counters what came since `earlier`, a page of the same server; all of them where it has
  // been restarted since.
  void Subtract(const ModelMetrics& earlier);
  LayerDecisions decisions() const { return SumOf(layers); }
};

// What a server's metrics page says.
struct ServerMetrics {
  std::map<std::string, ModelMetrics> models;
  std::string version;
  double heartbeat_age = 0;  // seconds since the engine's thread last went round
  double resident_bytes = 0;

  static ServerMetrics Of(const MetricsPage& page);
  // Of the page at that address (path /metrics unless it has one).  Fails as HttpGet and ParseMetrics do;
  // FailedPrecondition for the page of another program.
  static absl::StatusOr<ServerMetrics> Fetch(const HttpAddress& address, absl::Duration timeout);
};

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_MONITOR_SERVER_METRICS_H_
