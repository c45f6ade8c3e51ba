#ifndef GATEHOUSE_SERVER_TELEMETRY_METRICS_H_
#define GATEHOUSE_SERVER_TELEMETRY_METRICS_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/serving/observer.h"

namespace gatehouse {

class ModelCatalog;
class OperationManager;
class Scheduler;

// Counts what the server does, for Prometheus; metric_table.h documents every series.
// Counters and histograms are fed by the scheduler through Observer; gauges are read when
// the page is made, and never wait for an engine.  Series of every model exist from the
// start, at zero.  Thread-safe.
class Metrics final : public Observer {
 public:
  // `catalog` is filled and outlives this.
  Metrics(const ModelCatalog& catalog, const std::string& version);
  ~Metrics() override;

  // What the gauges read; both null before they are destroyed.
  void Watch(const Scheduler* scheduler, const OperationManager* operations);

  // All series, in Prometheus' text format.
  std::string Page() const;

  void OnRouted(std::string_view model, Phase phase, int tokens, const PathTokens& paths) override;
  void OnInterToken(std::string_view model, double seconds) override;
  void OnStep(std::string_view model, int rows, int tokens, double seconds) override;
  void OnCallEnd(const CallObservation& call) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TELEMETRY_METRICS_H_
