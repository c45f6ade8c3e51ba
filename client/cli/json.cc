#include "client/cli/json.h"

#include <charconv>
#include <cmath>

#include "absl/strings/escaping.h"
#include "client/errors.h"
#include "client/utf8.h"

namespace gatehouse::cli {
namespace {

using client::ReplaceInvalidUtf8;

template <typename Values, typename Convert>
Json Array(const Values& values, const Convert& convert) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(convert(value));
  return array;
}

template <typename Values>
Json Array(const Values& values) {
  return Array(values, [](const auto& value) { return Json(value); });
}

Json Numbers(const google::protobuf::RepeatedField<float>& values) {
  return Array(values, [](float value) { return Number(value); });
}

// The fields every token has.
Json TokenJson(int32_t id, const std::string& raw_bytes, bool raw) {
  Json json = {{"id", id}, {"text", ReplaceInvalidUtf8(raw_bytes)}};
  if (raw) json["raw"] = Base64(raw_bytes);
  return json;
}

Json ToJson(const v1::LayerConsensus& consensus) {
  return {{"layer", consensus.layer()},
          {"level", consensus.has_level() ? Json(consensus.level()) : Json()},
          {"fired", Array(consensus.fired())},
          {"exceptions_fired", Array(consensus.exceptions_fired())}};
}

// Adds what was recorded to a token's object; arrays that were not asked for are left out.
void AddInsight(const v1::TokenInsight& insight, Json& json) {
  if (insight.paths_size() > 0) {
    json["paths"] = Array(insight.paths(), [](int path) { return PathName(static_cast<v1::MlpPath>(path)); });
  }
  if (insight.gate_margin_size() > 0) json["gate_margin"] = Numbers(insight.gate_margin());
  if (insight.gate_probability_size() > 0) json["gate_probability"] = Numbers(insight.gate_probability());
  if (insight.nonlinearity_size() > 0) json["nonlinearity"] = Numbers(insight.nonlinearity());
  if (insight.output_norm_size() > 0) json["output_norm"] = Numbers(insight.output_norm());
  if (insight.consensus_size() > 0) {
    json["consensus"] = Array(insight.consensus(), [](const v1::LayerConsensus& layer) { return ToJson(layer); });
  }
}

Json TopJson(const google::protobuf::RepeatedPtrField<v1::TokenAlternative>& top, bool raw) {
  return Array(top, [&](const v1::TokenAlternative& alternative) {
    Json json = TokenJson(alternative.id(), alternative.raw(), raw);
    json["logprob"] = Number(alternative.logprob());
    return json;
  });
}

Json InsightJson(const v1::TokenInsight& insight) {
  Json json = {{"position", insight.position()}};
  AddInsight(insight, json);
  return json;
}

using Findings = google::protobuf::RepeatedPtrField<v1::NeuronFinding>;

Json Indices(const Findings& findings) {
  return Array(findings, [](const v1::NeuronFinding& finding) { return Json(finding.neuron()); });
}

Json FindingsJson(const Findings& findings) {
  return Array(findings, [](const v1::NeuronFinding& finding) {
    return Json{{"neuron", finding.neuron()},
                {"base_rate", Number(finding.base_rate())},
                {"rate_difference", Number(finding.rate_difference())}};
  });
}

Json ToJson(const v1::CalibrationDescription& calibration) {
  return {{"name", calibration.name()},
          {"fingerprint", calibration.fingerprint()},
          {"model_fingerprint", calibration.model_fingerprint()},
          {"created", calibration.created()},
          {"corpus", calibration.corpus()},
          {"corpus_sha256", calibration.corpus_sha256()},
          {"fit_tokens", calibration.fit_tokens()},
          {"gate_tokens", calibration.gate_tokens()},
          {"select_tokens", calibration.select_tokens()},
          {"report_tokens", calibration.report_tokens()},
          {"window_tokens", calibration.window_tokens()},
          {"sink_positions", calibration.sink_positions()},
          {"gateable_cost_limit", Number(calibration.gateable_cost_limit())},
          {"seed", calibration.seed()},
          {"dtype", calibration.dtype()},
          {"ingredients", Array(calibration.ingredients())},
          {"operating_points",
           Array(calibration.operating_points(), [](const v1::OperatingPoint& point) { return cli::ToJson(point); })}};
}

Json ToJson(const v1::ReportColumn& column) {
  Json values = Array(column.numbers().values(), [](double value) { return Number(value); });
  if (column.has_strings()) values = Array(column.strings().values());
  return {{"name", column.name()}, {"description", column.description()}, {"values", std::move(values)}};
}

Json ToJson(const v1::ReportTable& table) {
  return {{"name", table.name()},
          {"title", table.title()},
          {"description", table.description()},
          {"columns", Array(table.columns(), [](const v1::ReportColumn& column) { return ToJson(column); })}};
}

std::string PlotKindName(v1::ReportPlot::Kind kind) {
  switch (kind) {
    case v1::ReportPlot::KIND_LINE:
      return "line";
    case v1::ReportPlot::KIND_BAR:
      return "bar";
    case v1::ReportPlot::KIND_SCATTER:
      return "scatter";
    default:
      return "unspecified";
  }
}

Json ToJson(const v1::ReportPlot& plot) {
  return {{"kind", PlotKindName(plot.kind())},
          {"title", plot.title()},
          {"caption", plot.caption()},
          {"table", plot.table()},
          {"x", plot.x()},
          {"y", plot.y()},
          {"low", plot.low()},
          {"high", plot.high()},
          {"series", plot.series()},
          {"label", plot.label()},
          {"log_x", plot.log_x()},
          {"log_y", plot.log_y()}};
}

}  // namespace

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// The shortest decimal that is this float, rather than all digits of its double.
Json Number(float value) {
  if (!std::isfinite(value)) return {};
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  double shortest = 0;
  std::from_chars(text, end, shortest);
  return shortest;
}

std::string Base64(std::string_view bytes) {
  std::string encoded;
  absl::Base64Escape({bytes.data(), bytes.size()}, &encoded);
  return encoded;
}

Json ToJson(const v1::RoutingSummary& routing) {
  return {{"linear_fraction", Number(routing.linear_fraction())},
          {"decisions", routing.decisions()},
          {"linear_decisions", routing.linear_decisions()},
          {"ladder_decisions", routing.ladder_decisions()},
          {"skip_decisions", routing.skip_decisions()},
          {"mlp_work_saved", Number(routing.mlp_work_saved())},
          {"calibration", routing.calibration()},
          {"notes", Array(routing.notes())},
          {"layers", Array(routing.layers(), [](const v1::LayerRouting& layer) {
             return Json{{"layer", layer.layer()},
                         {"full_tokens", layer.full_tokens()},
                         {"linear_tokens", layer.linear_tokens()},
                         {"ladder_tokens", layer.ladder_tokens()},
                         {"skip_tokens", layer.skip_tokens()}};
           })}};
}

Json ToJson(const v1::TokenInsight& insight, bool raw) {
  Json json = TokenJson(insight.id(), insight.raw(), raw);
  json["position"] = insight.position();
  AddInsight(insight, json);
  return json;
}

Json ToJson(const v1::GeneratedToken& token, bool raw) {
  Json json = TokenJson(token.id(), token.raw(), raw);
  json["logprob"] = Number(token.logprob());
  if (token.top_size() > 0) json["top"] = TopJson(token.top(), raw);
  if (token.has_insight()) json["insight"] = InsightJson(token.insight());
  return json;
}

Json ToJson(const v1::ScoredToken& token, bool raw) {
  Json json = TokenJson(token.id(), token.raw(), raw);
  json["position"] = token.position();
  json["logprob"] = token.has_logprob() ? Number(token.logprob()) : Json();
  if (token.top_size() > 0) json["top"] = TopJson(token.top(), raw);
  if (token.has_insight()) json["insight"] = InsightJson(token.insight());
  return json;
}

Json ToJson(const v1::NonlinearityPercentiles& layer) {
  return {{"layer", layer.layer()},
          {"p25", Number(layer.p25())},
          {"p50", Number(layer.p50())},
          {"p70", Number(layer.p70())},
          {"p95", Number(layer.p95())}};
}

Json ToJson(const v1::LayerNeurons& layer) {
  return {{"layer", layer.layer()},
          {"consensus", Array(layer.consensus())},
          {"exception", Array(layer.exception())},
          {"gateway", Array(layer.gateway())}};
}

Json ToJson(const v1::LayerCalibration& layer) {
  return {{"layer", layer.layer()},
          {"surrogate_r2", Number(layer.surrogate_r2())},
          {"surrogate_r2_with_sinks", Number(layer.surrogate_r2_with_sinks())},
          {"linear_cost", Number(layer.linear_cost())},
          {"linear_cost_with_sinks", Number(layer.linear_cost_with_sinks())},
          {"gateable", layer.gateable()},
          {"ladder_neurons", layer.ladder_neurons()},
          {"gate_linear_fraction", Number(layer.gate_linear_fraction())},
          {"gate_cost", Number(layer.gate_cost())},
          {"p25", Number(layer.p25())},
          {"p50", Number(layer.p50())},
          {"p70", Number(layer.p70())},
          {"p95", Number(layer.p95())},
          {"consensus", Indices(layer.consensus())},
          {"exception", Indices(layer.exception())},
          {"gateway", Indices(layer.gateway())},
          {"shuffled_labels",
           {{"consensus", Number(layer.consensus_null())},
            {"exception", Number(layer.exception_null())},
            {"gateway", Number(layer.gateway_null())}}},
          {"random_weights",
           {{"consensus", Number(layer.consensus_random())},
            {"exception", Number(layer.exception_random())},
            {"gateway", Number(layer.gateway_random())}}},
          {"findings",
           {{"consensus", FindingsJson(layer.consensus())},
            {"exception", FindingsJson(layer.exception())},
            {"gateway", FindingsJson(layer.gateway())}}}};
}

Json ToJson(const v1::OperatingPoint& point) {
  return {{"name", point.name()},
          {"budget", Number(point.budget())},
          {"cost", Number(point.cost())},
          {"cost_low", Number(point.cost_low())},
          {"cost_high", Number(point.cost_high())},
          {"work_saved", Number(point.work_saved())},
          {"linear_fraction", Number(point.linear_fraction())},
          {"ladder_fraction", Number(point.ladder_fraction())},
          {"layers", Array(point.layers(), [](const v1::OperatingLayer& layer) {
             return Json{{"layer", layer.layer()},
                         {"linear_threshold", Number(layer.linear_threshold())},
                         {"ladder_threshold", Number(layer.ladder_threshold())}};
           })}};
}

Json ToJson(const v1::CalibrationSummary& calibration) {
  return {{"name", calibration.name()},
          {"active", calibration.active()},
          {"created", calibration.created()},
          {"fingerprint", calibration.fingerprint()}};
}

Json ToJson(const v1::DescribeModelResponse& model) {
  Json json = {{"name", model.name()},
               {"architecture", model.architecture()},
               {"parameters", model.parameters()},
               {"layer_count", model.layers()},
               {"d_model", model.d_model()},
               {"d_mlp", model.d_mlp()},
               {"heads", model.heads()},
               {"kv_heads", model.kv_heads()},
               {"vocab_size", model.vocab_size()},
               {"context_tokens", model.context_tokens()},
               {"dtype", model.dtype()},
               {"device", model.device()},
               {"kernels", model.kernels()},
               {"weight_bytes", model.weight_bytes()},
               {"fingerprint", model.fingerprint()},
               {"eos_token_ids", Array(model.eos_token_ids())},
               {"calibrations", Array(model.calibrations(), [](const auto& entry) { return ToJson(entry); })}};
  json["calibration"] = model.has_calibration() ? ToJson(model.calibration()) : Json();
  json["layers"] = Array(model.calibration().layers(), [](const auto& layer) { return ToJson(layer); });
  return json;
}

Json ToJson(const v1::Operation& operation) {
  Json json = {{"name", operation.name()},         {"kind", operation.kind()},
               {"model", operation.model()},       {"state", OperationStateName(operation.state())},
               {"progress", operation.progress()}, {"stage", operation.stage()},
               {"created", operation.created()},   {"ended", operation.ended()},
               {"result", operation.result()},     {"result_bytes", operation.result_bytes()},
               {"files", Array(operation.files())}};
  const bool failed = operation.error_code() != 0 || !operation.error_message().empty();
  json["error"] = failed
                      ? Json{{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(operation.error_code()))},
                             {"message", operation.error_message()}}
                      : Json();
  return json;
}

Json ToJson(const v1::Report& report) {
  return {
      {"kind", report.kind()},
      {"title", report.title()},
      {"summary", report.summary()},
      {"model", report.model()},
      {"model_fingerprint", report.model_fingerprint()},
      {"dtype", report.dtype()},
      {"created", report.created()},
      {"corpora",
       Array(report.corpora(),
             [](const v1::ReportCorpus& corpus) {
               return Json{{"label", corpus.label()}, {"sha256", corpus.sha256()}, {"tokens", corpus.tokens()}};
             })},
      {"settings", Array(report.settings(),
                         [](const v1::ReportSetting& setting) {
                           return Json{{"name", setting.name()}, {"value", setting.value()}};
                         })},
      {"notes", Array(report.notes())},
      {"tables", Array(report.tables(), [](const v1::ReportTable& table) { return ToJson(table); })},
      {"plots", Array(report.plots(), [](const v1::ReportPlot& plot) { return ToJson(plot); })},
  };
}

Json ErrorJson(const absl::Status& status) {
  return {{"error",
           {{"code", absl::StatusCodeToString(status.code())},
            {"reason", client::ErrorReason(status)},
            {"message", ReplaceInvalidUtf8(std::string(status.message()))}}}};
}

std::string FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_EOS:
      return "eos";
    case v1::FINISH_REASON_STOP_STRING:
      return "stop_string";
    case v1::FINISH_REASON_STOP_TOKEN:
      return "stop_token";
    default:
      return "unspecified";
  }
}

std::string OperationStateName(v1::OperationState state) {
  switch (state) {
    case v1::OPERATION_STATE_WAITING:
      return "waiting";
    case v1::OPERATION_STATE_RUNNING:
      return "running";
    case v1::OPERATION_STATE_SUCCEEDED:
      return "succeeded";
    case v1::OPERATION_STATE_FAILED:
      return "failed";
    case v1::OPERATION_STATE_CANCELLED:
      return "cancelled";
    case v1::OPERATION_STATE_INTERRUPTED:
      return "interrupted";
    default:
      return "unspecified";
  }
}

std::string PathName(v1::MlpPath path) {
  switch (path) {
    case v1::MLP_PATH_FULL:
      return "full";
    case v1::MLP_PATH_LINEAR:
      return "linear";
    case v1::MLP_PATH_LADDER:
      return "ladder";
    case v1::MLP_PATH_SKIP:
      return "skip";
    default:
      return "unspecified";
  }
}

}  // namespace gatehouse::cli
