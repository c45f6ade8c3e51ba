#include "server/serving/insight.h"

#include <string>

namespace gatehouse {
namespace {

// Row `row` of row-major [tokens, layers] values; empty where they were not recorded.
template <typename T, typename From>
std::vector<T> RowOf(const std::vector<From>& values, int row, int layers) {
  if (values.empty()) return {};
  const auto begin = values.begin() + static_cast<ptrdiff_t>(row) * layers;
  return std::vector<T>(begin, begin + layers);
}

}  // namespace

TokenInsight InsightAt(const TokenRecords& records, int row, int32_t id, int position, const Tokenizer& tokenizer) {
  TokenInsight insight;
  insight.id = id;
  insight.position = position;
  insight.raw = std::string(tokenizer.TokenBytes(id));
  insight.paths = RowOf<MlpPath>(records.path, row, records.layers);
  insight.gate_margin = RowOf<float>(records.gate_margin, row, records.layers);
  insight.nonlinearity = RowOf<float>(records.nonlinearity, row, records.layers);
  insight.output_norm = RowOf<float>(records.output_norm, row, records.layers);
  insight.level = RowOf<int>(records.level, row, records.layers);
  insight.fired = RowOf<uint64_t>(records.fired, row, records.layers);
  insight.exceptions = RowOf<uint64_t>(records.exceptions, row, records.layers);
  insight.gate_probability = RowOf<float>(records.gate_probability, row, records.layers);
  return insight;
}

std::vector<TokenAlternative> Alternatives(std::span<const TokenLogprob> top, const Tokenizer& tokenizer) {
  std::vector<TokenAlternative> alternatives;
  alternatives.reserve(top.size());
  for (const TokenLogprob& token : top) {
    alternatives.push_back({token.id, token.logprob, std::string(tokenizer.TokenBytes(token.id))});
  }
  return alternatives;
}

void RoutingTally::Add(int tokens, const RowResult& result) {
  const auto count = [](const std::vector<uint32_t>& counts, size_t layer) {
    return layer < counts.size() ? int64_t{counts[layer]} : 0;
  };
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const int64_t linear = count(result.linear_tokens, layer), ladder = count(result.ladder_tokens, layer),
                  skip = count(result.skip_tokens, layer);
    layers_[layer].linear += linear;
    layers_[layer].ladder += ladder;
    layers_[layer].skip += skip;
    layers_[layer].full += tokens - linear - ladder - skip;
    layers_[layer].gated += count(result.gated_tokens, layer);
    layers_[layer].quorum += count(result.quorum_tokens, layer);
  }
}

RoutingReport RoutingTally::Report(const RoutingPolicy& policy, std::span<const std::string> notes) const {
  RoutingReport report;
  std::vector<LayerTraffic> layers = layers_;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerTraffic& layer = layers[i];
    if (policy.calibration() != nullptr) {
      const LayerCalibration& calibrated = policy.calibration()->info().layers[i];
      layer.ladder_neurons = calibrated.ladder_neurons;
      layer.quorum_neurons = static_cast<int>(calibrated.consensus.size());
    }
    report.full_tokens.push_back(static_cast<uint64_t>(layer.full));
    report.linear_tokens.push_back(static_cast<uint64_t>(layer.linear));
    report.ladder_tokens.push_back(static_cast<uint64_t>(layer.ladder));
    report.skip_tokens.push_back(static_cast<uint64_t>(layer.skip));
    report.linear_decisions += report.linear_tokens.back();
    report.ladder_decisions += report.ladder_tokens.back();
    report.skip_decisions += report.skip_tokens.back();
    report.decisions += static_cast<uint64_t>(layer.full + layer.linear + layer.ladder + layer.skip);
  }
  report.mlp_work_saved = MlpWorkSaved(model_, layers);
  if (policy.calibration() != nullptr) report.calibration = policy.calibration()->info().name;
  report.notes = policy.notes();
  report.notes.insert(report.notes.end(), notes.begin(), notes.end());
  return report;
}

}  // namespace gatehouse
