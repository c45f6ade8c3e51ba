#include "server/telemetry/metric_table.h"

#include "server/base/strings.h"

namespace gatehouse {
namespace {

struct LabelInfo {
  const char* name;
  const char* values;
};

constexpr LabelInfo kLabels[] = {
    {"model", "a name this server serves; empty for requests that name another"},
    {"layer", "from 0"},
    {"path", "`full`, `linear`, `ladder`, `skip`"},
    {"phase", "`prefill`, `decode`, `score` (scoring and analysis)"},
    {"method", "`generate`, `score`, `nonlinearity`, `consensus`"},
    {"code", "the gRPC status code's name, such as `OK` or `RESOURCE_EXHAUSTED`"},
    {"reason", "`length`, `eos`, `stop_string`, `stop_token`"},
    {"kind", "of an operation: `calibrate`, or an experiment's method"},
    {"state", "`waiting`, `running`; `succeeded`, `failed`, `cancelled`, `interrupted` once it has ended"},
    {"calibration", "its name"},
    {"fingerprint", "of the calibration's or the model's content: the same on replicas that answer alike"},
    {"architecture", "`gpt2`, `gpt_neox`, `llama`"},
    {"dtype", "of the weights in memory: `float32`, `bfloat16`"},
    {"device", "`cpu`, `cuda`"},
    {"kernels", "the matrix kernels in use"},
    {"version", "of the server"},
};

const char* NameOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

// "model, layer" as "`model`, `layer`".
std::string Quoted(std::string_view labels) {
  std::string quoted;
  for (const char c : labels) {
    if (c == ',') {
      quoted += "`, `";
    } else if (c != ' ') {
      quoted += c;
    }
  }
  return quoted.empty() ? quoted : StrCat("`", quoted, "`");
}

}  // namespace

std::string MetricsReference() {
  std::string text;
  std::string_view section;
  for (const MetricInfo& metric : kMetrics) {
    if (metric.section != section) {
      section = metric.section;
      text += StrCat(text.empty() ? "" : "\n", "### ", section, "\n\n| name | type | labels | |\n|---|---|---|---|\n");
    }
    text += StrCat("| `", metric.name, "` | ", NameOf(metric.type), " | ", Quoted(metric.labels), " | ", metric.help,
                   " |\n");
  }
  text += "\n### Labels\n\n| label | values |\n|---|---|\n";
  for (const LabelInfo& label : kLabels) text += StrCat("| `", label.name, "` | ", label.values, " |\n");
  return text;
}

}  // namespace gatehouse
