#include "server/telemetry/model_series.h"

#include <cmath>

#include "absl/status/status.h"
#include "server/telemetry/metric_table.h"

namespace gatehouse {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

constexpr const char* kPhaseNames[kPhases] = {"prefill", "decode", "score"};

// What a call can end with; see docs/api.md.
constexpr absl::StatusCode kCodes[] = {absl::StatusCode::kOk,
                                       absl::StatusCode::kCancelled,
                                       absl::StatusCode::kInvalidArgument,
                                       absl::StatusCode::kDeadlineExceeded,
                                       absl::StatusCode::kNotFound,
                                       absl::StatusCode::kResourceExhausted,
                                       absl::StatusCode::kFailedPrecondition,
                                       absl::StatusCode::kOutOfRange,
                                       absl::StatusCode::kInternal,
                                       absl::StatusCode::kUnavailable,
                                       absl::StatusCode::kUnknown};

// prometheus-cpp adds the bucket of +Inf itself, and again where it is given.
const Buckets& Seconds() {
  static const Buckets* const buckets =
      new Buckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
  return *buckets;
}

const Buckets& Counts() {
  static const Buckets* const buckets = new Buckets{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  return *buckets;
}

prometheus::Family<prometheus::Counter>& Counters(prometheus::Registry& registry, const MetricInfo& metric) {
  return prometheus::BuildCounter().Name(metric.name).Help(metric.help).Register(registry);
}

prometheus::Family<prometheus::Histogram>& Histograms(prometheus::Registry& registry, const MetricInfo& metric) {
  return prometheus::BuildHistogram().Name(metric.name).Help(metric.help).Register(registry);
}

std::map<std::string, prometheus::Counter*, std::less<>> RequestCounters(MetricFamilies& families,
                                                                         const std::string& model,
                                                                         const std::string& method) {
  std::map<std::string, prometheus::Counter*, std::less<>> counters;
  for (const absl::StatusCode code : kCodes) {
    const std::string name = absl::StatusCodeToString(code);
    counters[name] = &families.requests.Add({{"model", model}, {"method", method}, {"code", name}});
  }
  return counters;
}

}  // namespace

void Count(prometheus::Counter& counter, double value) {
  if (value > 0 && std::isfinite(value)) counter.Increment(value);
}

void Observe(prometheus::Histogram& histogram, double value) {
  if (value >= 0 && std::isfinite(value)) histogram.Observe(value);
}

MetricFamilies::MetricFamilies(prometheus::Registry& registry)
    : mlp_tokens(Counters(registry, Metric("gatehouse_mlp_tokens_total"))),
      requests(Counters(registry, Metric("gatehouse_requests_total"))),
      prompt_tokens(Counters(registry, Metric("gatehouse_prompt_tokens_total"))),
      generated_tokens(Counters(registry, Metric("gatehouse_generated_tokens_total"))),
      finish_reasons(Counters(registry, Metric("gatehouse_finish_reasons_total"))),
      first_token_seconds(Histograms(registry, Metric("gatehouse_time_to_first_token_seconds"))),
      inter_token_seconds(Histograms(registry, Metric("gatehouse_inter_token_seconds"))),
      request_seconds(Histograms(registry, Metric("gatehouse_request_seconds"))),
      queue_seconds(Histograms(registry, Metric("gatehouse_queue_seconds"))),
      prefill_seconds(Histograms(registry, Metric("gatehouse_prefill_seconds"))),
      decode_seconds(Histograms(registry, Metric("gatehouse_decode_seconds"))),
      step_seconds(Histograms(registry, Metric("gatehouse_step_seconds"))),
      step_rows(Histograms(registry, Metric("gatehouse_step_rows"))),
      step_tokens(Histograms(registry, Metric("gatehouse_step_tokens"))) {}

MethodSeries::MethodSeries(MetricFamilies& families, const std::string& model, const std::string& method)
    : requests(RequestCounters(families, model, method)),
      prompt_tokens(families.prompt_tokens.Add({{"model", model}, {"method", method}})),
      request_seconds(families.request_seconds.Add({{"model", model}, {"method", method}}, Seconds())),
      queue_seconds(families.queue_seconds.Add({{"model", model}, {"method", method}}, Seconds())) {}

ModelSeries::ModelSeries(MetricFamilies& families, const std::string& model, int layers)
    : generated_tokens(families.generated_tokens.Add({{"model", model}})),
      first_token_seconds(families.first_token_seconds.Add({{"model", model}}, Seconds())),
      inter_token_seconds(families.inter_token_seconds.Add({{"model", model}}, Seconds())),
      prefill_seconds(families.prefill_seconds.Add({{"model", model}}, Seconds())),
      decode_seconds(families.decode_seconds.Add({{"model", model}}, Seconds())),
      step_seconds(families.step_seconds.Add({{"model", model}}, Seconds())),
      step_rows(families.step_rows.Add({{"model", model}}, Counts())),
      step_tokens(families.step_tokens.Add({{"model", model}}, Counts())) {
  for (int phase = 0; phase < kPhases; ++phase) {
    for (int layer = 0; layer < layers; ++layer) {
      prometheus::Labels labels = {{"model", model}, {"layer", std::to_string(layer)}, {"phase", kPhaseNames[phase]}};
      LayerCounters counters;
      labels["path"] = "full";
      counters.full = &families.mlp_tokens.Add(labels);
      labels["path"] = "linear";
      counters.linear = &families.mlp_tokens.Add(labels);
      labels["path"] = "ladder";
      counters.ladder = &families.mlp_tokens.Add(labels);
      labels["path"] = "skip";
      counters.skip = &families.mlp_tokens.Add(labels);
      mlp_tokens[static_cast<size_t>(phase)].push_back(counters);
    }
  }
  for (const char* const method : kMethods) methods.try_emplace(method, families, model, method);
  const std::pair<FinishReason, const char*> reasons[] = {{FinishReason::kLength, "length"},
                                                          {FinishReason::kEos, "eos"},
                                                          {FinishReason::kStopString, "stop_string"},
                                                          {FinishReason::kStopToken, "stop_token"}};
  for (const auto& [reason, name] : reasons) {
    finish_reasons[reason] = &families.finish_reasons.Add({{"model", model}, {"reason", name}});
  }
}

}  // namespace gatehouse
