#include "server/engine/analysis/neuron_discovery.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "server/engine/analysis/shuffle.h"

namespace gatehouse {
namespace {

constexpr int64_t kCountedRows = 4096;  // counted at a time; float32 counts them exactly
constexpr size_t kCandidates = 30;      // neurons the rules look at
constexpr size_t kPatternNeurons = 8;   // neurons whose joint patterns are counted
constexpr int64_t kPatternTokens = 50;
constexpr size_t kPatterns = 20;
constexpr double kGatewayShare = 0.75;  // 15 of 20
constexpr int64_t kRegimeTokens = 20;

// Writes regimes as two masks, linear and high, into columns `column` and `column` + 1 of
// `out`, [tokens, columns] float32 on the CPU.
void FillMasks(std::span<const Regime> regimes, int64_t column, at::Tensor& out) {
  float* row = out.mutable_data_ptr<float>() + column;
  for (const Regime regime : regimes) {
    row[0] = regime == Regime::kLinear ? 1 : 0;
    row[1] = regime == Regime::kHigh ? 1 : 0;
    row += out.size(1);
  }
}

struct Rates {
  std::vector<double> base, difference;  // [d_mlp]
};

// How many of the tokens in each column of `masks` [tokens, columns] each neuron fires on:
// [d_mlp, columns] float64.
at::Tensor CountFiring(const at::Tensor& firing, const at::Tensor& masks) {
  at::Tensor counts = at::zeros({firing.size(1), masks.size(1)}, masks.options().dtype(at::kDouble));
  for (int64_t row = 0; row < firing.size(0); row += kCountedRows) {
    const int64_t n = std::min(kCountedRows, firing.size(0) - row);
    counts += at::mm(firing.narrow(0, row, n).to(at::kFloat).t(), masks.narrow(0, row, n));
  }
  return counts;
}

std::vector<double> ToVector(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kDouble).cpu().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

// The neurons with the largest |rate difference|, largest first.
std::vector<int> Candidates(const Rates& rates) {
  std::vector<int> neurons(rates.base.size());
  std::iota(neurons.begin(), neurons.end(), 0);
  const size_t count = std::min(kCandidates, neurons.size());
  std::partial_sort(neurons.begin(), neurons.begin() + count, neurons.end(), [&](int a, int b) {
    const double size_a = std::abs(rates.difference[a]), size_b = std::abs(rates.difference[b]);
    return size_a != size_b ? size_a > size_b : a < b;
  });
  neurons.resize(count);
  return neurons;
}

// The on/off patterns of some neurons: for each pattern, a number whose bit i says that
// neuron i is on, the tokens that have it.
struct PatternCounts {
  std::vector<double> all, linear, high;  // [2^neurons]
};

PatternCounts CountPatterns(const at::Tensor& firing, const std::vector<int>& neurons, const at::Tensor& masks) {
  const at::Tensor columns = at::tensor(std::vector<int64_t>(neurons.begin(), neurons.end())).to(firing.device());
  at::Tensor codes = at::zeros({firing.size(0)}, columns.options());
  const at::Tensor on = at::index_select(firing, 1, columns).to(at::kLong);
  for (size_t i = 0; i < neurons.size(); ++i) codes += on.select(1, static_cast<int64_t>(i)) * (int64_t{1} << i);
  const int64_t patterns = int64_t{1} << neurons.size();
  return {ToVector(at::bincount(codes, {}, patterns)), ToVector(at::bincount(codes, masks.select(1, 0), patterns)),
          ToVector(at::bincount(codes, masks.select(1, 1), patterns))};
}

// Patterns enriched in the high regime against the linear one, most enriched first.
std::vector<size_t> EnrichedPatterns(const PatternCounts& counts) {
  const double linear = std::reduce(counts.linear.begin(), counts.linear.end());
  const double high = std::reduce(counts.high.begin(), counts.high.end());
  // Half a token is added to each count, so that a pattern no linear token has can be ranked.
  const auto enrichment = [&](size_t pattern) {
    return (counts.high[pattern] + 0.5) / (high + 0.5) * (linear + 0.5) / (counts.linear[pattern] + 0.5);
  };
  std::vector<size_t> patterns;
  for (size_t i = 0; i < counts.all.size(); ++i) {
    if (counts.all[i] >= kPatternTokens && enrichment(i) > 1) patterns.push_back(i);
  }
  std::stable_sort(patterns.begin(), patterns.end(), [&](size_t a, size_t b) { return enrichment(a) > enrichment(b); });
  if (patterns.size() > kPatterns) patterns.resize(kPatterns);
  return patterns;
}

std::vector<NeuronFinding> Gateways(const at::Tensor& firing, const at::Tensor& masks, const Rates& rates,
                                    std::vector<int> neurons) {
  if (neurons.size() > kPatternNeurons) neurons.resize(kPatternNeurons);
  const std::vector<size_t> patterns = EnrichedPatterns(CountPatterns(firing, neurons, masks));
  std::vector<NeuronFinding> found;
  for (size_t i = 0; i < neurons.size() && !patterns.empty(); ++i) {
    const auto on = std::count_if(patterns.begin(), patterns.end(), [i](size_t pattern) { return pattern >> i & 1; });
    if (static_cast<double>(on) >= kGatewayShare * static_cast<double>(patterns.size())) {
      found.push_back({neurons[i], rates.base[neurons[i]], rates.difference[neurons[i]]});
    }
  }
  return found;
}

// masks: [tokens, 2] float32.
NeuronFindings ApplyRules(const at::Tensor& firing, const at::Tensor& masks, const Rates& rates, int max_consensus) {
  const std::vector<int> candidates = Candidates(rates);
  NeuronFindings findings;
  for (const int neuron : candidates) {
    const NeuronFinding finding{neuron, rates.base[neuron], rates.difference[neuron]};
    if (finding.rate_difference > 0.3 && finding.base_rate < 0.3) findings.exception.push_back(finding);
    if (finding.rate_difference < -0.4 && finding.base_rate > 0.6) findings.consensus.push_back(finding);
  }
  if (findings.consensus.size() > static_cast<size_t>(max_consensus)) findings.consensus.resize(max_consensus);
  findings.gateway = Gateways(firing, masks, rates, candidates);
  return findings;
}

// The findings of several labelings, [labelings] of regimes, in one pass over `firing`.
std::vector<NeuronFindings> DiscoverEach(const at::Tensor& firing, const std::vector<std::vector<Regime>>& labelings,
                                         int max_consensus) {
  const int64_t count = static_cast<int64_t>(labelings.size());
  // The last column is all ones: base rates.
  at::Tensor masks = at::ones({firing.size(0), 2 * count + 1}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) FillMasks(labelings[i], 2 * i, masks);
  masks = masks.to(firing.device());
  const at::Tensor rates = CountFiring(firing, masks) / masks.sum(0, false, at::kDouble);  // [d_mlp, columns]
  const std::vector<double> base = ToVector(rates.select(1, 2 * count));
  std::vector<NeuronFindings> findings;
  for (int64_t i = 0; i < count; ++i) {
    const Rates layer_rates{base, ToVector(rates.select(1, 2 * i + 1) - rates.select(1, 2 * i))};
    findings.push_back(ApplyRules(firing, masks.narrow(1, 2 * i, 2), layer_rates, max_consensus));
  }
  return findings;
}

bool TooFew(std::span<const Regime> regimes) {
  return std::count(regimes.begin(), regimes.end(), Regime::kLinear) < kRegimeTokens ||
         std::count(regimes.begin(), regimes.end(), Regime::kHigh) < kRegimeTokens;
}

}  // namespace

NeuronFindings DiscoverNeurons(const at::Tensor& firing, std::span<const Regime> regimes, int max_consensus) {
  if (TooFew(regimes)) return {};
  return DiscoverEach(firing, {{regimes.begin(), regimes.end()}}, max_consensus).front();
}

FindingCounts ShuffledFindings(const at::Tensor& firing, std::span<const Regime> regimes, int max_consensus,
                               int shuffles, uint64_t seed) {
  if (TooFew(regimes)) return {};
  std::vector<std::vector<Regime>> labelings;
  std::mt19937_64 random(seed);
  for (int i = 0; i < shuffles; ++i) {
    labelings.emplace_back(regimes.begin(), regimes.end());
    Shuffle(labelings.back(), random);
  }
  FindingCounts mean;
  for (const NeuronFindings& findings : DiscoverEach(firing, labelings, max_consensus)) {
    mean.consensus += static_cast<double>(findings.consensus.size()) / shuffles;
    mean.exception += static_cast<double>(findings.exception.size()) / shuffles;
    mean.gateway += static_cast<double>(findings.gateway.size()) / shuffles;
  }
  return mean;
}

}  // namespace gatehouse
