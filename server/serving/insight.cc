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

void RoutingTally::Add(int tokens, std::span<const uint32_t> linear_tokens) {
  for (size_t layer = 0; layer < full_.size(); ++layer) {
    const uint32_t linear = layer < linear_tokens.size() ? linear_tokens[layer] : 0;
    linear_[layer] += linear;
    full_[layer] += static_cast<uint64_t>(tokens) - linear;
  }
}

RoutingReport RoutingTally::Report(const RoutingPolicy& policy) const {
  RoutingReport report;
  report.full_tokens = full_;
  report.linear_tokens = linear_;
  for (size_t layer = 0; layer < full_.size(); ++layer) {
    report.linear_decisions += linear_[layer];
    report.decisions += full_[layer] + linear_[layer];
  }
  if (policy.calibration() != nullptr) report.calibration = policy.calibration()->info().name;
  report.notes = policy.notes();
  return report;
}

}  // namespace gatehouse
