#include "server/telemetry/metrics.h"

#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "server/serving/model_catalog.h"
#include "server/serving/scheduler.h"
#include "server/telemetry/gauges.h"
#include "server/telemetry/model_series.h"

namespace gatehouse {

struct Metrics::Impl {
  Impl(const ModelCatalog& catalog, std::string version)
      : catalog(catalog), version(std::move(version)), families(registry) {
    for (const ServedModel* const model : catalog.models()) {
      models.try_emplace(model->name, families, model->name, model->engine->info().layers);
    }
    for (const char* const method : kMethods) unknown.try_emplace(method, families, "", method);
  }

  ModelSeries* Find(std::string_view model) {
    const auto found = models.find(model);
    return found == models.end() ? nullptr : &found->second;
  }

  const ModelCatalog& catalog;
  const std::string version;
  prometheus::Registry registry;
  MetricFamilies families;
  std::map<std::string, ModelSeries, std::less<>> models;    // never changed, so read without a lock
  std::map<std::string, MethodSeries, std::less<>> unknown;  // of the model ""

  mutable std::mutex mutex;
  const Scheduler* scheduler = nullptr;
  const OperationManager* operations = nullptr;
};

Metrics::Metrics(const ModelCatalog& catalog, const std::string& version)
    : impl_(std::make_unique<Impl>(catalog, version)) {}
Metrics::~Metrics() = default;

void Metrics::Watch(const Scheduler* scheduler, const OperationManager* operations) {
  const std::lock_guard lock(impl_->mutex);
  impl_->scheduler = scheduler;
  impl_->operations = operations;
}

std::string Metrics::Page() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  {
    const std::lock_guard lock(impl_->mutex);
    auto gauges = ReadGauges(impl_->catalog, impl_->scheduler, impl_->operations, impl_->version);
    families.insert(families.end(), std::make_move_iterator(gauges.begin()), std::make_move_iterator(gauges.end()));
  }
  // The registry keeps series in the order of a hash.
  for (prometheus::MetricFamily& family : families) {
    std::sort(family.metric.begin(), family.metric.end(),
              [](const auto& a, const auto& b) { return a.label < b.label; });
  }
  return prometheus::TextSerializer().Serialize(families);
}

void Metrics::OnRouted(std::string_view model, Phase phase, int tokens, const PathTokens& paths) {
  ModelSeries* const series = impl_->Find(model);
  if (series == nullptr) return;
  const auto& layers = series->mlp_tokens[static_cast<size_t>(phase)];
  const size_t counted = std::min({layers.size(), paths.linear.size(), paths.ladder.size(), paths.skip.size()});
  for (size_t layer = 0; layer < counted; ++layer) {
    Count(*layers[layer].linear, paths.linear[layer]);
    Count(*layers[layer].ladder, paths.ladder[layer]);
    Count(*layers[layer].skip, paths.skip[layer]);
    Count(*layers[layer].full,
          static_cast<double>(tokens) - paths.linear[layer] - paths.ladder[layer] - paths.skip[layer]);
  }
}

void Metrics::OnInterToken(std::string_view model, double seconds) {
  if (ModelSeries* const series = impl_->Find(model)) Observe(series->inter_token_seconds, seconds);
}

void Metrics::OnStep(std::string_view model, int rows, int tokens, double seconds) {
  ModelSeries* const series = impl_->Find(model);
  if (series == nullptr) return;
  Observe(series->step_seconds, seconds);
  Observe(series->step_rows, rows);
  Observe(series->step_tokens, tokens);
}

void Metrics::OnCallEnd(const CallObservation& call) {
  ModelSeries* const series = impl_->Find(call.model);
  auto& methods = series != nullptr ? series->methods : impl_->unknown;
  const auto method = methods.find(call.method);
  if (method == methods.end()) return;
  auto code = method->second.requests.find(absl::StatusCodeToString(call.code));
  if (code == method->second.requests.end()) code = method->second.requests.find("UNKNOWN");
  code->second->Increment();
  Count(method->second.prompt_tokens, static_cast<double>(call.prompt_tokens));
  if (series == nullptr) return;
  Count(series->generated_tokens, static_cast<double>(call.generated_tokens));
  if (call.first_token_seconds.has_value()) Observe(series->first_token_seconds, *call.first_token_seconds);
  if (call.code != absl::StatusCode::kOk) return;
  Observe(method->second.request_seconds, call.total_seconds);
  Observe(method->second.queue_seconds, call.queue_seconds);
  if (!call.finish_reason.has_value()) return;
  series->finish_reasons.at(*call.finish_reason)->Increment();
  Observe(series->prefill_seconds, call.prefill_seconds);
  Observe(series->decode_seconds, call.decode_seconds);
}

}  // namespace gatehouse
