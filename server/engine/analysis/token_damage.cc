#include "server/engine/analysis/token_damage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "server/engine/analysis/shuffle.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

// The mean of the values that exist.
double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  int count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count == 0 ? kNone : sum / count;
}

// Tokens and their means, tokens ascending.
struct Means {
  const std::vector<int32_t>& tokens;
  const std::vector<TokenMean> means;
};

// Calls `body` with the means of every token that both have.
template <typename Body>
void ForCommon(const Means& first, const Means& second, const Body& body) {
  size_t j = 0;
  for (size_t i = 0; i < first.tokens.size(); ++i) {
    while (j < second.tokens.size() && second.tokens[j] < first.tokens[i]) ++j;
    if (j == second.tokens.size()) return;
    if (second.tokens[j] == first.tokens[i]) body(first.tokens[i], first.means[i], second.means[j]);
  }
}

// All but the reliabilities; the tokens that are shared go to `shared`.
Agreement Compare(const Means& first, const Means& second, const NoFlyMethod& rule, std::vector<int32_t>* shared) {
  Agreement agreement;
  for (const TokenMean& mean : first.means) agreement.listed += IsListed(mean, rule);
  std::vector<double> listed_first, listed_second, shared_first, shared_second;
  ForCommon(first, second, [&](int32_t token, const TokenMean& a, const TokenMean& b) {
    if (b.count < rule.least_count_other) return;
    if (a.count >= rule.least_count_other) {
      shared_first.push_back(a.mean);
      shared_second.push_back(b.mean);
      if (shared != nullptr) shared->push_back(token);
    }
    if (!IsListed(a, rule)) return;
    listed_first.push_back(a.mean);
    listed_second.push_back(b.mean);
    agreement.flipped += b.mean < 0;
  });
  agreement.judged = static_cast<double>(listed_first.size());
  agreement.shared = static_cast<double>(shared_first.size());
  agreement.r_listed = Pearson(listed_first, listed_second);
  agreement.r_shared = Pearson(shared_first, shared_second);
  agreement.reliability_first = agreement.reliability_second = agreement.ceiling = kNone;
  return agreement;
}

}  // namespace

Occurrences Occurrences::Of(std::span<const int32_t> token, std::vector<int32_t> block, int32_t blocks) {
  Occurrences result;
  result.tokens.assign(token.begin(), token.end());
  std::sort(result.tokens.begin(), result.tokens.end());
  result.tokens.erase(std::unique(result.tokens.begin(), result.tokens.end()), result.tokens.end());
  for (const int32_t id : token) {
    const auto found = std::lower_bound(result.tokens.begin(), result.tokens.end(), id);
    result.of.push_back(static_cast<int32_t>(found - result.tokens.begin()));
  }
  result.block = std::move(block);
  result.blocks = blocks;
  return result;
}

std::vector<TokenMean> MeansByToken(const Occurrences& occurrences, std::span<const double> delta,
                                    const BlockMask& mask, bool side) {
  std::vector<TokenMean> means(occurrences.tokens.size());
  for (size_t i = 0; i < delta.size(); ++i) {
    if (!mask.empty() && (mask[occurrences.block[i]] != 0) != side) continue;
    TokenMean& mean = means[occurrences.of[i]];
    ++mean.count;
    mean.mean += delta[i];
    mean.positive += delta[i] > 0;
  }
  for (TokenMean& mean : means) {
    mean.mean = mean.count == 0 ? kNone : mean.mean / static_cast<double>(mean.count);
    mean.positive = mean.count == 0 ? 0 : mean.positive / static_cast<double>(mean.count);
  }
  return means;
}

bool IsListed(const TokenMean& mean, const NoFlyMethod& rule) {
  return mean.count >= rule.least_count && mean.mean > rule.least_mean && mean.positive > rule.least_positive;
}

double ListedByChance(const Occurrences& occurrences, std::span<const double> delta, const NoFlyMethod& rule,
                      int shuffles, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> shuffled(delta.begin(), delta.end());
  double listed = 0;
  for (int i = 0; i < shuffles; ++i) {
    Shuffle(shuffled, random);
    for (const TokenMean& mean : MeansByToken(occurrences, shuffled)) listed += IsListed(mean, rule);
  }
  return listed / shuffles;
}

std::vector<BlockMask> RandomHalves(int32_t blocks, int splits, uint64_t seed) {
  std::mt19937_64 random(seed);
  BlockMask mask(blocks, 0);
  std::fill_n(mask.begin(), blocks / 2, uint8_t{1});
  std::vector<BlockMask> halves;
  for (int i = 0; i < splits; ++i) {
    Shuffle(mask, random);
    halves.push_back(mask);
  }
  return halves;
}

double Reliability(const TokenDamage& text, std::span<const int32_t> tokens) {
  const Occurrences& occurrences = text.occurrences;
  std::vector<double> correlations;
  for (const BlockMask& mask : text.halves) {
    const std::vector<TokenMean> one = MeansByToken(occurrences, text.delta, mask, true);
    const std::vector<TokenMean> other = MeansByToken(occurrences, text.delta, mask, false);
    std::vector<double> x, y;
    for (const int32_t token : tokens) {
      const auto at = std::lower_bound(occurrences.tokens.begin(), occurrences.tokens.end(), token);
      const auto i = at - occurrences.tokens.begin();
      if (one[i].count == 0 || other[i].count == 0) continue;
      x.push_back(one[i].mean);
      y.push_back(other[i].mean);
    }
    correlations.push_back(Pearson(x, y));
  }
  return SpearmanBrown(MeanOf(correlations));
}

Agreement CompareTexts(const TokenDamage& first, const TokenDamage& second, const NoFlyMethod& rule) {
  std::vector<int32_t> shared;
  Agreement agreement =
      Compare({first.occurrences.tokens, MeansByToken(first.occurrences, first.delta)},
              {second.occurrences.tokens, MeansByToken(second.occurrences, second.delta)}, rule, &shared);
  agreement.reliability_first = Reliability(first, shared);
  agreement.reliability_second = Reliability(second, shared);
  if (agreement.reliability_first > 0 && agreement.reliability_second > 0) {
    agreement.ceiling = std::sqrt(agreement.reliability_first * agreement.reliability_second);
  }
  return agreement;
}

Agreement CompareHalves(const TokenDamage& text, const NoFlyMethod& rule) {
  Agreement mean;
  std::vector<double> r_listed, r_shared;
  const auto splits = static_cast<double>(text.halves.size());
  for (const BlockMask& mask : text.halves) {
    const Agreement halves =
        Compare({text.occurrences.tokens, MeansByToken(text.occurrences, text.delta, mask, true)},
                {text.occurrences.tokens, MeansByToken(text.occurrences, text.delta, mask, false)}, rule, nullptr);
    mean.listed += halves.listed / splits;
    mean.judged += halves.judged / splits;
    mean.flipped += halves.flipped / splits;
    mean.shared += halves.shared / splits;
    r_listed.push_back(halves.r_listed);
    r_shared.push_back(halves.r_shared);
  }
  mean.r_listed = MeanOf(r_listed);
  mean.r_shared = MeanOf(r_shared);
  mean.reliability_first = mean.reliability_second = mean.ceiling = kNone;
  return mean;
}

}  // namespace gatehouse
