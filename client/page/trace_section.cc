#include "client/page/trace_section.h"

#include <string_view>

#include "client/utf8.h"

namespace gatehouse::client {
namespace {

using cli::Json;

Json Neurons(const google::protobuf::RepeatedPtrField<v1::NeuronFinding>& findings) {
  Json neurons = Json::array();
  for (const v1::NeuronFinding& finding : findings) neurons.push_back(finding.neuron());
  return neurons;
}

}  // namespace

v1::TokenRecords TraceRecords() {
  v1::TokenRecords records;
  records.set_routing(true);
  records.set_nonlinearity(true);
  records.set_consensus(true);
  records.set_gate(true);
  return records;
}

Json TraceSection(const v1::DescribeModelResponse& model) {
  const v1::CalibrationDescription& calibration = model.calibration();
  Json layers = Json::array();
  for (const v1::LayerCalibration& layer : calibration.layers()) {
    layers.push_back({{"layer", layer.layer()},
                      {"p25", cli::Number(layer.p25())},
                      {"p50", cli::Number(layer.p50())},
                      {"p70", cli::Number(layer.p70())},
                      {"p95", cli::Number(layer.p95())},
                      {"gateable", layer.gateable()},
                      {"linear_cost", cli::Number(layer.linear_cost())},
                      {"consensus", Neurons(layer.consensus())},
                      {"exception", Neurons(layer.exception())}});
  }
  return {{"kind", "trace"},
          {"model", model.name()},
          {"calibration", calibration.name()},
          {"sink_positions", calibration.sink_positions()},
          {"threshold", 0.5},
          {"layers", std::move(layers)}};
}

std::string TraceTokens::TextOf(const std::string& raw) {
  carry_ += raw;
  const std::string_view bytes = carry_;
  size_t used = 0;
  while (used < bytes.size()) {
    const Utf8Step step = NextUtf8(bytes.substr(used));
    if (step.incomplete) break;
    used += step.length;
  }
  std::string text = ReplaceInvalidUtf8(bytes.substr(0, used));
  carry_.erase(0, used);
  return text;
}

Json TraceTokens::Next(const v1::TokenInsight& insight) {
  Json json = cli::ToJson(insight, false);
  json["text"] = TextOf(insight.raw());
  return json;
}

Json TraceTokens::Next(const v1::ScoredToken& token) {
  Json json = token.has_insight() ? Next(token.insight()) : Next(token.id(), token.raw());
  json["logprob"] = token.has_logprob() ? cli::Number(token.logprob()) : Json();
  return json;
}

Json TraceTokens::Next(int32_t id, const std::string& raw) { return {{"id", id}, {"text", TextOf(raw)}}; }

}  // namespace gatehouse::client
