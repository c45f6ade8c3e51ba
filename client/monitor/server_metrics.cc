#include "client/monitor/server_metrics.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"

namespace gatehouse::client {
namespace {

// No model has more layers; keeps a hostile page from filling memory.
constexpr uint32_t kMaxLayer = 65535;

// Hears every sample of that name of a model that the page names.
template <typename Hear>
void ForEach(const MetricsPage& page, std::string_view name, std::map<std::string, ModelMetrics>& models,
             const Hear& hear) {
  const auto found = page.find(name);
  if (found == page.end()) return;
  for (const MetricSample& sample : found->second) {
    // Requests for models that are not served are counted under the empty name.
    if (const std::string& model = sample.Label("model"); !model.empty()) hear(sample, models[model]);
  }
}

double ValueOf(const MetricsPage& page, std::string_view name) {
  const auto found = page.find(name);
  return found == page.end() || found->second.empty() ? 0 : found->second.front().value;
}

void ReadSums(const MetricsPage& page, std::map<std::string, ModelMetrics>& models) {
  struct Sum {
    const char* name;
    double ModelMetrics::*field;
  };
  constexpr Sum kSums[] = {{"gatehouse_requests_running", &ModelMetrics::running},
                           {"gatehouse_requests_waiting", &ModelMetrics::waiting},
                           {"gatehouse_waiting_prompt_tokens", &ModelMetrics::waiting_prompt_tokens},
                           {"gatehouse_kv_pages_used", &ModelMetrics::kv_used},
                           {"gatehouse_kv_pages_capacity", &ModelMetrics::kv_capacity},
                           {"gatehouse_kv_page_bytes", &ModelMetrics::kv_page_bytes},
                           {"gatehouse_requests_total", &ModelMetrics::requests}};
  for (const Sum& sum : kSums) {
    ForEach(page, sum.name, models,
            [&](const MetricSample& sample, ModelMetrics& model) { model.*sum.field += sample.value; });
  }
  ForEach(page, "gatehouse_requests_total", models, [](const MetricSample& sample, ModelMetrics& model) {
    const std::string& code = sample.Label("code");
    if (code != "OK" && code != "CANCELLED") model.failed += sample.value;
  });
}

void ReadRouting(const MetricsPage& page, std::map<std::string, ModelMetrics>& models) {
  ForEach(page, "gatehouse_mlp_tokens_total", models, [](const MetricSample& sample, ModelMetrics& model) {
    uint32_t layer = 0;
    if (!absl::SimpleAtoi(sample.Label("layer"), &layer) || layer > kMaxLayer) return;
    if (model.layers.size() <= layer) model.layers.resize(layer + 1);
    if (layer == 0) (sample.Label("phase") == "decode" ? model.generated_tokens : model.prompt_tokens) += sample.value;
    const std::string& path = sample.Label("path");
    LayerDecisions& decisions = model.layers[layer];
    (path == "linear"   ? decisions.linear
     : path == "ladder" ? decisions.ladder
     : path == "skip"   ? decisions.skip
                        : decisions.full) += sample.value;
  });
}

void ReadHistogram(const MetricsPage& page, const std::string& name, MetricHistogram ModelMetrics::*field,
                   std::map<std::string, ModelMetrics>& models) {
  ForEach(page, name + "_bucket", models, [&](const MetricSample& sample, ModelMetrics& model) {
    const std::string& method = sample.Label("method");
    if (!method.empty() && method != "generate") return;
    const std::string& text = sample.Label("le");
    double bound = std::numeric_limits<double>::infinity();
    if (text != "+Inf" && !absl::SimpleAtod(text, &bound)) return;
    (model.*field).buckets[bound] += sample.value;
  });
}

}  // namespace

void MetricHistogram::Add(const MetricHistogram& other) {
  for (const auto& [bound, count] : other.buckets) buckets[bound] += count;
}

void MetricHistogram::Subtract(const MetricHistogram& earlier) {
  for (const auto& [bound, count] : earlier.buckets) buckets[bound] -= count;
}

double MetricHistogram::Quantile(double share) const {
  const double wanted = share * count();
  if (!(wanted > 0)) return std::numeric_limits<double>::quiet_NaN();
  double low = 0, below = 0;
  for (const auto& [bound, cumulative] : buckets) {
    if (cumulative >= wanted) {
      // Nothing is known of how far beyond the last bound values lie.
      if (bound == std::numeric_limits<double>::infinity()) return low;
      return low + (bound - low) * (wanted - below) / (cumulative - below);
    }
    low = bound;
    below = cumulative;
  }
  return low;
}

void ModelMetrics::Add(const ModelMetrics& other) {
  running += other.running;
  waiting += other.waiting;
  waiting_prompt_tokens += other.waiting_prompt_tokens;
  kv_used += other.kv_used;
  kv_capacity += other.kv_capacity;
  kv_page_bytes = std::max(kv_page_bytes, other.kv_page_bytes);
  prompt_tokens += other.prompt_tokens;
  generated_tokens += other.generated_tokens;
  requests += other.requests;
  failed += other.failed;
  if (layers.size() < other.layers.size()) layers.resize(other.layers.size());
  for (size_t i = 0; i < other.layers.size(); ++i) layers[i] += other.layers[i];
  first_token.Add(other.first_token);
  inter_token.Add(other.inter_token);
  request.Add(other.request);
  queue.Add(other.queue);
  if (calibration.empty()) calibration = other.calibration;
}

void ModelMetrics::Subtract(const ModelMetrics& earlier) {
  const bool restarted = requests < earlier.requests || prompt_tokens < earlier.prompt_tokens ||
                         generated_tokens < earlier.generated_tokens || decisions().all() < earlier.decisions().all();
  if (restarted) return;
  prompt_tokens -= earlier.prompt_tokens;
  generated_tokens -= earlier.generated_tokens;
  requests -= earlier.requests;
  failed -= earlier.failed;
  for (size_t i = 0; i < std::min(layers.size(), earlier.layers.size()); ++i) layers[i] -= earlier.layers[i];
  first_token.Subtract(earlier.first_token);
  inter_token.Subtract(earlier.inter_token);
  request.Subtract(earlier.request);
  queue.Subtract(earlier.queue);
}

ServerMetrics ServerMetrics::Of(const MetricsPage& page) {
  ServerMetrics metrics;
  auto& models = metrics.models;
  ReadSums(page, models);
  ReadRouting(page, models);
  ReadHistogram(page, "gatehouse_time_to_first_token_seconds", &ModelMetrics::first_token, models);
  ReadHistogram(page, "gatehouse_inter_token_seconds", &ModelMetrics::inter_token, models);
  ReadHistogram(page, "gatehouse_request_seconds", &ModelMetrics::request, models);
  ReadHistogram(page, "gatehouse_queue_seconds", &ModelMetrics::queue, models);
  ForEach(page, "gatehouse_calibration_info", models,
          [](const MetricSample& sample, ModelMetrics& model) { model.calibration = sample.Label("calibration"); });
  if (const auto build = page.find("gatehouse_build_info"); build != page.end() && !build->second.empty()) {
    metrics.version = build->second.front().Label("version");
  }
  metrics.heartbeat_age = ValueOf(page, "gatehouse_heartbeat_age_seconds");
  metrics.resident_bytes = ValueOf(page, "process_resident_memory_bytes");
  return metrics;
}

absl::StatusOr<ServerMetrics> ServerMetrics::Fetch(const HttpAddress& address, absl::Duration timeout) {
  const auto text = HttpGet(address, address.path.empty() ? "/metrics" : address.path, {.timeout = timeout});
  if (!text.ok()) return text.status();
  const auto page = ParseMetrics(*text);
  if (!page.ok()) return page.status();
  if (page->find("gatehouse_build_info") == page->end()) {
    return absl::FailedPreconditionError("the page there is of another program, not a gatehouse-server");
  }
  return Of(*page);
}

}  // namespace gatehouse::client
