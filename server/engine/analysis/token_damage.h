#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_DAMAGE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_DAMAGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "server/engine/experiment.h"

namespace gatehouse {

// Which tokens suffer from a linear layer, and whether another text agrees ("Half the
// Nonlinearity Is Wasted", methods A.5).  Everything here is of one layer; δCE is in nats.

// The occurrences of a text's tokens, the same for every layer.
struct Occurrences {
  std::vector<int32_t> tokens;  // the distinct ones, ascending
  std::vector<int32_t> of;      // each occurrence's index in `tokens`
  std::vector<int32_t> block;   // each occurrence's block, in [0, blocks)
  int32_t blocks = 0;

  // token: one an occurrence.
  static Occurrences Of(std::span<const int32_t> token, std::vector<int32_t> block, int32_t blocks);
};

// What the occurrences of one token came to.
struct TokenMean {
  int64_t count = 0;
  double mean = 0;      // of δCE; NaN where count is 0
  double positive = 0;  // share of δCE above 0
};

// Half of a text's blocks, as a mask [blocks].
using BlockMask = std::vector<uint8_t>;

// One a token of `occurrences.tokens`, over the blocks whose mask is `side`; over all where
// `mask` is empty.
std::vector<TokenMean> MeansByToken(const Occurrences& occurrences, std::span<const double> delta,
                                    const BlockMask& mask = {}, bool side = true);

// The paper's rule: mean > least_mean, n ≥ least_count, share of positive > least_positive.
bool IsListed(const TokenMean& mean, const NoFlyMethod& rule);

// How many tokens the rule lists when δCE is shuffled among the occurrences: the mean over
// `shuffles`.
double ListedByChance(const Occurrences& occurrences, std::span<const double> delta, const NoFlyMethod& rule,
                      int shuffles, uint64_t seed);

// Random halves of a text's blocks.
std::vector<BlockMask> RandomHalves(int32_t blocks, int splits, uint64_t seed);

// What a second text says of the tokens that a first one lists.
struct Agreement {
  double listed = 0;    // tokens the first text lists
  double judged = 0;    // of these, with n ≥ least_count_other on the second
  double flipped = 0;   // of these, with a mean below 0 there
  double shared = 0;    // tokens with n ≥ least_count_other on both
  double r_listed = 0;  // Pearson's r of the means over the judged tokens
  double r_shared = 0;  // over the shared tokens
  // Of the means of each text over the shared tokens, and the most that r_shared can be
  // expected to be with them, √(rel₁·rel₂).  NaN where a reliability is not positive.
  double reliability_first = 0, reliability_second = 0, ceiling = 0;
};

// One text at one layer.
struct TokenDamage {
  const Occurrences& occurrences;
  std::span<const double> delta;
  const std::vector<BlockMask>& halves;
};
Agreement CompareTexts(const TokenDamage& first, const TokenDamage& second, const NoFlyMethod& rule);

// The same between the halves of one text, the mean over its splits: what chance alone flips.
// Without reliabilities (NaN).
Agreement CompareHalves(const TokenDamage& text, const NoFlyMethod& rule);

// Spearman-Brown of the mean correlation between halves, over `tokens` (ascending ids) that
// both halves have.
double Reliability(const TokenDamage& text, std::span<const int32_t> tokens);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_DAMAGE_H_
