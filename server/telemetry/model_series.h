#ifndef GATEHOUSE_SERVER_TELEMETRY_MODEL_SERIES_H_
#define GATEHOUSE_SERVER_TELEMETRY_MODEL_SERIES_H_

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "server/serving/observer.h"

namespace gatehouse {

inline constexpr int kPhases = 3;

// Adds to a counter, or observes, unless the value would spoil the series for good:
// prometheus-cpp lets NaN and negative values in.
void Count(prometheus::Counter& counter, double value);
void Observe(prometheus::Histogram& histogram, double value);

// The families of all models.  Owned by the registry.
struct MetricFamilies {
  explicit MetricFamilies(prometheus::Registry& registry);

  prometheus::Family<prometheus::Counter>& mlp_tokens;
  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Counter>& prompt_tokens;
  prometheus::Family<prometheus::Counter>& generated_tokens;
  prometheus::Family<prometheus::Counter>& finish_reasons;
  prometheus::Family<prometheus::Histogram>& first_token_seconds;
  prometheus::Family<prometheus::Histogram>& inter_token_seconds;
  prometheus::Family<prometheus::Histogram>& request_seconds;
  prometheus::Family<prometheus::Histogram>& queue_seconds;
  prometheus::Family<prometheus::Histogram>& prefill_seconds;
  prometheus::Family<prometheus::Histogram>& decode_seconds;
  prometheus::Family<prometheus::Histogram>& step_seconds;
  prometheus::Family<prometheus::Histogram>& step_rows;
  prometheus::Family<prometheus::Histogram>& step_tokens;
};

// The series of one method of one model.
struct MethodSeries {
  MethodSeries(MetricFamilies& families, const std::string& model, const std::string& method);

  // By the name of the status code; those that no call can end with are not there.
  std::map<std::string, prometheus::Counter*, std::less<>> requests;
  prometheus::Counter& prompt_tokens;
  prometheus::Histogram& request_seconds;
  prometheus::Histogram& queue_seconds;
};

// The series of one model, made at zero once and then only counted in.
struct ModelSeries {
  ModelSeries(MetricFamilies& families, const std::string& model, int layers);

  struct LayerCounters {
    prometheus::Counter* full = nullptr;
    prometheus::Counter* linear = nullptr;
    prometheus::Counter* ladder = nullptr;
    prometheus::Counter* skip = nullptr;
  };
  std::array<std::vector<LayerCounters>, kPhases> mlp_tokens;  // [phase][layer]
  std::map<std::string, MethodSeries, std::less<>> methods;
  prometheus::Counter& generated_tokens;
  std::map<FinishReason, prometheus::Counter*> finish_reasons;
  prometheus::Histogram& first_token_seconds;
  prometheus::Histogram& inter_token_seconds;
  prometheus::Histogram& prefill_seconds;
  prometheus::Histogram& decode_seconds;
  prometheus::Histogram& step_seconds;
  prometheus::Histogram& step_rows;
  prometheus::Histogram& step_tokens;
};

// Requests that name no model of this server are counted under the model "".
inline constexpr const char* kMethods[] = {"generate", "score", "nonlinearity", "consensus"};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TELEMETRY_MODEL_SERIES_H_
