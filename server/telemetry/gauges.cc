#include "server/telemetry/gauges.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "server/serving/model_catalog.h"
#include "server/serving/scheduler.h"

namespace gatehouse {
namespace {

using prometheus::MetricFamily;
using Labels = std::vector<prometheus::ClientMetric::Label>;

MetricFamily Gauge(const char* name, const char* help) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  return family;
}

void Add(MetricFamily& family, Labels labels, double value) {
  std::sort(labels.begin(), labels.end());  // as the registry's are
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

void AddLoad(const Scheduler& scheduler, std::vector<MetricFamily>& families) {
  MetricFamily running = Gauge("gatehouse_requests_running", "Calls whose rows take part in steps.");
  MetricFamily waiting = Gauge("gatehouse_requests_waiting", "Calls that wait for admission.");
  MetricFamily tokens = Gauge("gatehouse_waiting_prompt_tokens", "Prompt tokens of the calls that wait.");
  MetricFamily used = Gauge("gatehouse_kv_pages_used", "Pages of the memory for keys and values in use.");
  MetricFamily capacity = Gauge("gatehouse_kv_pages_capacity", "Pages the memory for keys and values has.");
  MetricFamily bytes = Gauge("gatehouse_kv_page_bytes", "Bytes of one page.");
  for (const ModelLoad& load : scheduler.Load()) {
    const Labels labels = {{"model", load.model}};
    Add(running, labels, load.running);
    Add(waiting, labels, load.waiting);
    Add(tokens, labels, static_cast<double>(load.waiting_prompt_tokens));
    Add(used, labels, static_cast<double>(load.kv.pages_used));
    Add(capacity, labels, static_cast<double>(load.kv.pages_total));
    Add(bytes, labels, static_cast<double>(load.kv.page_bytes));
  }
  MetricFamily heartbeat = Gauge("gatehouse_heartbeat_age_seconds", "Since the engine's thread last went round.");
  Add(heartbeat, {}, absl::ToDoubleSeconds(scheduler.SinceHeartbeat()));
  for (MetricFamily* const family : {&running, &waiting, &tokens, &used, &capacity, &bytes, &heartbeat}) {
    families.push_back(std::move(*family));
  }
}

void AddModels(const ModelCatalog& catalog, std::vector<MetricFamily>& families) {
  MetricFamily models = Gauge("gatehouse_model_info", "Always 1; the labels say which model is served and how.");
  MetricFamily calibrations = Gauge("gatehouse_calibration_info", "Always 1; the labels name the active calibration.");
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
                                     const std::string& version) {
  std::vector<MetricFamily> families;
  if (scheduler != nullptr) AddLoad(*scheduler, families);
  AddModels(catalog, families);
  MetricFamily build = Gauge("gatehouse_build_info", "Always 1; the label is the server's version.");
  Add(build, {{"version", version}}, 1);
  families.push_back(std::move(build));
  MetricFamily memory = Gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.");
  Add(memory, {}, ResidentBytes());
  families.push_back(std::move(memory));
  return families;
}

}  // namespace gatehouse
