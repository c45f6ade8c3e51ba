#include "server/telemetry/gauges.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "server/serving/model_catalog.h"
#include "server/serving/operations.h"
#include "server/serving/scheduler.h"
#include "server/telemetry/metric_table.h"

namespace gatehouse {
namespace {

using prometheus::MetricFamily;
using Labels = std::vector<prometheus::ClientMetric::Label>;

MetricFamily Family(const MetricInfo& metric) {
  MetricFamily family;
  family.name = metric.name;
  family.help = metric.help;
  family.type = metric.type == MetricType::kCounter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  return family;
}

void Add(MetricFamily& family, Labels labels, double value) {
  std::sort(labels.begin(), labels.end());  // as the registry's are
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  (family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
}

void AddLoad(const Scheduler& scheduler, std::vector<MetricFamily>& families) {
  MetricFamily running = Family(Metric("gatehouse_requests_running"));
  MetricFamily waiting = Family(Metric("gatehouse_requests_waiting"));
  MetricFamily tokens = Family(Metric("gatehouse_waiting_prompt_tokens"));
  MetricFamily used = Family(Metric("gatehouse_kv_pages_used"));
  MetricFamily capacity = Family(Metric("gatehouse_kv_pages_capacity"));
  MetricFamily bytes = Family(Metric("gatehouse_kv_page_bytes"));
  for (const ModelLoad& load : scheduler.Load()) {
    const Labels labels = {{"model", load.model}};
    Add(running, labels, load.running);
    Add(waiting, labels, load.waiting);
    Add(tokens, labels, static_cast<double>(load.waiting_prompt_tokens));
    Add(used, labels, static_cast<double>(load.kv.pages_used));
    Add(capacity, labels, static_cast<double>(load.kv.pages_total));
    Add(bytes, labels, static_cast<double>(load.kv.page_bytes));
  }
  MetricFamily heartbeat = Family(Metric("gatehouse_heartbeat_age_seconds"));
  Add(heartbeat, {}, absl::ToDoubleSeconds(scheduler.SinceHeartbeat()));
  for (MetricFamily* const family : {&running, &waiting, &tokens, &used, &capacity, &bytes, &heartbeat}) {
    families.push_back(std::move(*family));
  }
}

void AddOperations(const OperationManager& operations, std::vector<MetricFamily>& families) {
  MetricFamily unfinished = Family(Metric("gatehouse_operations"));
  MetricFamily ended = Family(Metric("gatehouse_operations_ended_total"));
  MetricFamily progress = Family(Metric("gatehouse_operation_progress"));
  const OperationLoad load = operations.Load();
  for (const auto& [kind, states] : load.counts) {
    for (const auto& [state, count] : states) {
      Add(IsDone(state) ? ended : unfinished, {{"kind", kind}, {"state", std::string(NameOf(state))}},
          static_cast<double>(count));
    }
  }
  Add(progress, {}, load.progress);
  for (MetricFamily* const family : {&unfinished, &ended, &progress}) families.push_back(std::move(*family));
}

void AddModels(const ModelCatalog& catalog, std::vector<MetricFamily>& families) {
  MetricFamily models = Family(Metric("gatehouse_model_info"));
  MetricFamily calibrations = Family(Metric("gatehouse_calibration_info"));
  for (const ServedModel* const model : catalog.models()) {
    const ModelInfo& info = model->engine->info();
    Add(models,
        {{"model", model->name},
         {"architecture", info.architecture},
         {"dtype", info.dtype},
         {"device", info.device},
         {"kernels", info.kernels},
         {"fingerprint", info.fingerprint}},
        1);
    const std::string active = model->calibrations->ActiveName();
    for (const CalibrationStore::Entry& entry : model->calibrations->List()) {
      if (entry.name != active) continue;
      Add(calibrations, {{"model", model->name}, {"calibration", entry.name}, {"fingerprint", entry.info.fingerprint}},
          1);
    }
  }
  families.push_back(std::move(models));
  families.push_back(std::move(calibrations));
}

// Of /proc/self/statm; 0 where there is none.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return file ? resident * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

std::vector<MetricFamily> ReadGauges(const ModelCatalog& catalog, const Scheduler* scheduler,
                                     const OperationManager* operations, const std::string& version) {
  std::vector<MetricFamily> families;
  if (scheduler != nullptr) AddLoad(*scheduler, families);
  if (operations != nullptr) AddOperations(*operations, families);
  AddModels(catalog, families);
  MetricFamily build = Family(Metric("gatehouse_build_info"));
  Add(build, {{"version", version}}, 1);
  families.push_back(std::move(build));
  MetricFamily memory = Family(Metric("process_resident_memory_bytes"));
  Add(memory, {}, ResidentBytes());
  families.push_back(std::move(memory));
  return families;
}

}  // namespace gatehouse
