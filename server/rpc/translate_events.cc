#include "server/rpc/grpc_status.h"
#include "server/rpc/translate.h"

namespace gatehouse {
namespace {

v1::MlpPath PathToProto(MlpPath path) { return static_cast<v1::MlpPath>(static_cast<int>(path) + 1); }
static_assert(static_cast<int>(MlpPath::kFull) + 1 == v1::MLP_PATH_FULL);
static_assert(static_cast<int>(MlpPath::kLinear) + 1 == v1::MLP_PATH_LINEAR);
static_assert(static_cast<int>(MlpPath::kLadder) + 1 == v1::MLP_PATH_LADDER);
static_assert(static_cast<int>(MlpPath::kSkip) + 1 == v1::MLP_PATH_SKIP);

v1::FinishReason ReasonToProto(FinishReason reason) {
  return static_cast<v1::FinishReason>(static_cast<int>(reason) + 1);
}
static_assert(static_cast<int>(FinishReason::kLength) + 1 == v1::FINISH_REASON_LENGTH);
static_assert(static_cast<int>(FinishReason::kEos) + 1 == v1::FINISH_REASON_EOS);
static_assert(static_cast<int>(FinishReason::kStopString) + 1 == v1::FINISH_REASON_STOP_STRING);
static_assert(static_cast<int>(FinishReason::kStopToken) + 1 == v1::FINISH_REASON_STOP_TOKEN);

v1::TokenAlternative ToProto(const TokenAlternative& alternative) {
  v1::TokenAlternative proto;
  proto.set_id(alternative.id);
  proto.set_logprob(alternative.logprob);
  proto.set_raw(alternative.raw);
  return proto;
}

v1::RoutingSummary ToProto(const RoutingReport& report) {
  v1::RoutingSummary proto;
  proto.set_linear_fraction(report.linear_fraction());
  proto.set_decisions(report.decisions);
  proto.set_linear_decisions(report.linear_decisions);
  proto.set_ladder_decisions(report.ladder_decisions);
  proto.set_skip_decisions(report.skip_decisions);
  proto.set_mlp_work_saved(report.mlp_work_saved);
  for (size_t layer = 0; layer < report.full_tokens.size(); ++layer) {
    v1::LayerRouting& entry = *proto.add_layers();
    entry.set_layer(static_cast<uint32_t>(layer));
    entry.set_full_tokens(report.full_tokens[layer]);
    entry.set_linear_tokens(report.linear_tokens[layer]);
    entry.set_ladder_tokens(report.ladder_tokens[layer]);
    entry.set_skip_tokens(report.skip_tokens[layer]);
  }
  proto.set_calibration(ValidUtf8(report.calibration));
  for (const std::string& note : report.notes) proto.add_notes(ValidUtf8(note));
  return proto;
}

// One layer's part of a consensus record: bits become neuron indices.
v1::LayerConsensus ConsensusOf(const TokenInsight& insight, size_t layer, const LayerCalibration& found) {
  v1::LayerConsensus proto;
  proto.set_layer(static_cast<uint32_t>(layer));
  if (insight.level[layer] < 0) return proto;
  if (!found.consensus.empty()) proto.set_level(static_cast<uint32_t>(insight.level[layer]));
  for (size_t i = 0; i < found.consensus.size(); ++i) {
    if ((insight.fired[layer] >> i & 1) != 0) proto.add_fired(static_cast<uint32_t>(found.consensus[i].neuron));
  }
  for (size_t i = 0; i < found.exception.size(); ++i) {
    if ((insight.exceptions[layer] >> i & 1) != 0) {
      proto.add_exceptions_fired(static_cast<uint32_t>(found.exception[i].neuron));
    }
  }
  return proto;
}

v1::LayerNeurons NeuronsOf(size_t layer, const LayerCalibration& found) {
  v1::LayerNeurons proto;
  proto.set_layer(static_cast<uint32_t>(layer));
  for (const NeuronFinding& finding : found.consensus) proto.add_consensus(static_cast<uint32_t>(finding.neuron));
  for (const NeuronFinding& finding : found.exception) proto.add_exception(static_cast<uint32_t>(finding.neuron));
  for (const NeuronFinding& finding : found.gateway) proto.add_gateway(static_cast<uint32_t>(finding.neuron));
  return proto;
}

}  // namespace

v1::TokenInsight ToProto(const TokenInsight& insight, const CalibrationInfo* calibration) {
  v1::TokenInsight proto;
  proto.set_id(insight.id);
  proto.set_position(static_cast<uint32_t>(insight.position));
  proto.set_raw(insight.raw);
  for (const MlpPath path : insight.paths) proto.add_paths(PathToProto(path));
  proto.mutable_gate_margin()->Add(insight.gate_margin.begin(), insight.gate_margin.end());
  proto.mutable_nonlinearity()->Add(insight.nonlinearity.begin(), insight.nonlinearity.end());
  proto.mutable_output_norm()->Add(insight.output_norm.begin(), insight.output_norm.end());
  proto.mutable_gate_probability()->Add(insight.gate_probability.begin(), insight.gate_probability.end());
  if (calibration == nullptr) return proto;
  const size_t layers = std::min(insight.level.size(), calibration->layers.size());
  for (size_t layer = 0; layer < layers; ++layer) {
    *proto.add_consensus() = ConsensusOf(insight, layer, calibration->layers[layer]);
  }
  return proto;
}

v1::GenerationStart ToProto(const GenerationStart& start) {
  v1::GenerationStart proto;
  proto.set_prompt_tokens(static_cast<uint32_t>(start.prompt_tokens));
  proto.set_max_tokens(static_cast<uint32_t>(start.max_tokens));
  return proto;
}

v1::GeneratedToken ToProto(const GeneratedToken& token, const CalibrationInfo* calibration) {
  v1::GeneratedToken proto;
  proto.set_id(token.id);
  proto.set_text(ValidUtf8(token.text));
  proto.set_raw(token.raw);
  proto.set_logprob(token.logprob);
  for (const TokenAlternative& alternative : token.top) *proto.add_top() = ToProto(alternative);
  if (token.insight.has_value()) *proto.mutable_insight() = ToProto(*token.insight, calibration);
  return proto;
}

v1::GenerationSummary ToProto(const GenerationSummary& summary) {
  v1::GenerationSummary proto;
  proto.set_finish_reason(ReasonToProto(summary.finish_reason));
  proto.set_matched_stop(ValidUtf8(summary.matched_stop));
  proto.set_text(ValidUtf8(summary.text));
  proto.set_prompt_tokens(static_cast<uint32_t>(summary.prompt_tokens));
  proto.set_generated_tokens(static_cast<uint32_t>(summary.generated_tokens));
  proto.set_queue_seconds(summary.queue_seconds);
  proto.set_prefill_seconds(summary.prefill_seconds);
  proto.set_decode_seconds(summary.decode_seconds);
  *proto.mutable_routing() = ToProto(summary.routing);
  proto.set_seed(summary.seed);
  return proto;
}

v1::ScoredToken ToProto(const ScoredToken& token, const CalibrationInfo* calibration) {
  v1::ScoredToken proto;
  proto.set_id(token.id);
  proto.set_position(static_cast<uint32_t>(token.position));
  proto.set_raw(token.raw);
  if (token.logprob.has_value()) proto.set_logprob(*token.logprob);
  for (const TokenAlternative& alternative : token.top) *proto.add_top() = ToProto(alternative);
  if (token.insight.has_value()) *proto.mutable_insight() = ToProto(*token.insight, calibration);
  return proto;
}

v1::ScoreSummary ToProto(const ScoreSummary& summary) {
  v1::ScoreSummary proto;
  proto.set_tokens(summary.tokens);
  proto.set_scored_tokens(summary.scored_tokens);
  proto.set_total_logprob(summary.total_logprob);
  if (summary.perplexity.has_value()) proto.set_perplexity(*summary.perplexity);
  proto.set_windows(summary.windows);
  proto.set_seconds(summary.seconds);
  *proto.mutable_routing() = ToProto(summary.routing);
  return proto;
}

v1::AnalysisSummary ToProto(const AnalysisSummary& summary) {
  v1::AnalysisSummary proto;
  proto.set_tokens(summary.tokens);
  proto.set_seconds(summary.seconds);
  *proto.mutable_routing() = ToProto(summary.routing);
  return proto;
}

v1::NonlinearityStart NonlinearityStartOf(const CalibrationInfo& calibration) {
  v1::NonlinearityStart proto;
  proto.set_calibration(ValidUtf8(calibration.name));
  for (size_t layer = 0; layer < calibration.layers.size(); ++layer) {
    const LayerCalibration& found = calibration.layers[layer];
    v1::NonlinearityPercentiles& entry = *proto.add_layers();
    entry.set_layer(static_cast<uint32_t>(layer));
    entry.set_p25(found.p25);
    entry.set_p50(found.p50);
    entry.set_p70(found.p70);
    entry.set_p95(found.p95);
  }
  return proto;
}

v1::ConsensusStart ConsensusStartOf(const CalibrationInfo& calibration) {
  v1::ConsensusStart proto;
  proto.set_calibration(ValidUtf8(calibration.name));
  for (size_t layer = 0; layer < calibration.layers.size(); ++layer) {
    *proto.add_layers() = NeuronsOf(layer, calibration.layers[layer]);
  }
  return proto;
}

}  // namespace gatehouse
