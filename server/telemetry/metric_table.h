#ifndef GATEHOUSE_SERVER_TELEMETRY_METRIC_TABLE_H_
#define GATEHOUSE_SERVER_TELEMETRY_METRIC_TABLE_H_

#include <string>
#include <string_view>

namespace gatehouse {

enum class MetricType { kCounter, kGauge, kHistogram };

// One row of the metrics reference.  Help texts are one line without a backslash:
// prometheus-cpp does not escape them.
struct MetricInfo {
  const char* section;
  const char* name;
  MetricType type;
  const char* labels;  // "model, layer"
  const char* help;
};

// Every family that the page has, in the order of the reference.
inline constexpr MetricInfo kMetrics[] = {
    {"Routing", "gatehouse_mlp_tokens_total", MetricType::kCounter, "model, layer, path, phase",
     "Token positions by the path their MLP took, per layer."},

    {"Calls", "gatehouse_requests_total", MetricType::kCounter, "model, method, code",
     "Calls that ended, by method and gRPC status code."},
    {"Calls", "gatehouse_prompt_tokens_total", MetricType::kCounter, "model, method",
     "Tokens of prompts and texts that were processed."},
    {"Calls", "gatehouse_generated_tokens_total", MetricType::kCounter, "model", "Tokens generated."},
    {"Calls", "gatehouse_finish_reasons_total", MetricType::kCounter, "model, reason",
     "Generations that completed, by what ended them."},
    {"Calls", "gatehouse_time_to_first_token_seconds", MetricType::kHistogram, "model",
     "From the arrival of a generation to its first token."},
    {"Calls", "gatehouse_inter_token_seconds", MetricType::kHistogram, "model",
     "Between two tokens of one generation."},
    {"Calls", "gatehouse_request_seconds", MetricType::kHistogram, "model, method",
     "From the arrival of a call to its end, of completed calls."},
    {"Calls", "gatehouse_queue_seconds", MetricType::kHistogram, "model, method",
     "Waiting for admission, of completed calls."},
    {"Calls", "gatehouse_prefill_seconds", MetricType::kHistogram, "model",
     "Processing the prompt, of completed generations."},
    {"Calls", "gatehouse_decode_seconds", MetricType::kHistogram, "model",
     "From the first token to the last, of completed generations."},

    {"Load", "gatehouse_requests_running", MetricType::kGauge, "model", "Calls whose rows take part in steps."},
    {"Load", "gatehouse_requests_waiting", MetricType::kGauge, "model", "Calls that wait for admission."},
    {"Load", "gatehouse_waiting_prompt_tokens", MetricType::kGauge, "model", "Prompt tokens of the calls that wait."},
    {"Load", "gatehouse_kv_pages_used", MetricType::kGauge, "model", "Pages of the memory for keys and values in use."},
    {"Load", "gatehouse_kv_pages_capacity", MetricType::kGauge, "model", "Pages the memory for keys and values has."},
    {"Load", "gatehouse_kv_page_bytes", MetricType::kGauge, "model", "Bytes of one page."},
    {"Load", "gatehouse_step_seconds", MetricType::kHistogram, "model", "One step of the engine."},
    {"Load", "gatehouse_step_rows", MetricType::kHistogram, "model", "Sequences that took part in one step."},
    {"Load", "gatehouse_step_tokens", MetricType::kHistogram, "model", "Token positions processed by one step."},
    {"Load", "gatehouse_heartbeat_age_seconds", MetricType::kGauge, "",
     "Since the engine's thread last went round; at most a second when idle."},
    {"Load", "process_resident_memory_bytes", MetricType::kGauge, "", "Memory of the process that is in RAM."},

    {"Operations", "gatehouse_operations", MetricType::kGauge, "kind, state",
     "Operations of this replica that wait or run."},
    {"Operations", "gatehouse_operations_ended_total", MetricType::kCounter, "kind, state",
     "Operations of this replica that ended since the server started."},
    {"Operations", "gatehouse_operation_progress", MetricType::kGauge, "",
     "How far the running operation is, from 0 to 1; 0 where none runs."},

    {"What is served", "gatehouse_calibration_info", MetricType::kGauge, "model, calibration, fingerprint",
     "Always 1; the labels name the active calibration. None where there is none."},
    {"What is served", "gatehouse_model_info", MetricType::kGauge,
     "model, architecture, dtype, device, kernels, fingerprint",
     "Always 1; the labels say which model is served and how."},
    {"What is served", "gatehouse_build_info", MetricType::kGauge, "version",
     "Always 1; the label is the server's version."},
};

// The row of a family; does not compile for a name the table lacks.
consteval const MetricInfo& Metric(std::string_view name) {
  for (const MetricInfo& metric : kMetrics) {
    if (metric.name == name) return metric;
  }
  throw "kMetrics has no such family";
}

// The tables of the metrics reference, in Markdown: families by section, then labels.
// docs/metrics.md contains them.
std::string MetricsReference();

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TELEMETRY_METRIC_TABLE_H_
