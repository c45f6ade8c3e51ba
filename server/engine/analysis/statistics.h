#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_STATISTICS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_STATISTICS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace gatehouse {

// A quantity that was not measured or is not defined.
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What the experiments know of chance.  Tokens of one block depend on each other, so blocks
// are what is resampled: a block bootstrap draws as many blocks as there are, with
// replacement, and the 2.5 % and 97.5 % quantiles of a statistic over the resamples are its
// 95 % interval.  Two quantities of the same tokens are drawn together (paired).  The same
// seed draws the same blocks on every platform.

struct Interval {
  double estimate = 0;
  double low = 0, high = 0;  // 95 %
};

// From the totals of n resamples, [n, k] float64, to the statistic of each, [n]; NaN where it
// does not exist.
using StatisticFn = std::function<at::Tensor(const at::Tensor& totals)>;

// The interval of a statistic that follows from sums over tokens.  sums: [blocks, k] float64,
// each block's own.  Resamples without a statistic are left out; where they are over 5 % there
// is no interval (NaN).
Interval BlockBootstrap(const at::Tensor& sums, int resamples, uint64_t seed, const StatisticFn& statistic);

// The mean of `values` over the tokens of `mask`; both [blocks, tokens], float64 and bool.  NaN
// where there are none.
Interval BootstrapMean(const at::Tensor& values, const at::Tensor& mask, int resamples, uint64_t seed);

// The relative change of perplexity, exp(mean(other − full)) − 1; both [blocks, window − 1]
// float64, cross-entropies in nats of the same tokens.
Interval BootstrapPerplexityChange(const at::Tensor& full, const at::Tensor& other, int resamples, uint64_t seed);

// Area under the ROC curve: the probability that a positive token (label 1) scores higher than
// a negative one; ties count half.  NaN where a class is empty.
double Auc(std::span<const double> scores, std::span<const uint8_t> labels);

// The same with its interval.  blocks: each token's block, in [0, block_count).
Interval BootstrapAuc(std::span<const double> scores, std::span<const uint8_t> labels, std::span<const int64_t> blocks,
                      int64_t block_count, int resamples, uint64_t seed);

// AUC of `scores` less that of `base`, over the same tokens.
Interval BootstrapAucDifference(std::span<const double> scores, std::span<const double> base,
                                std::span<const uint8_t> labels, std::span<const int64_t> blocks, int64_t block_count,
                                int resamples, uint64_t seed);

// Of at least one value.
double Mean(const std::vector<double>& values);

// Pearson's correlation; NaN for fewer than two pairs or where one side does not vary.
double Pearson(std::span<const double> x, std::span<const double> y);

// The reliability of a whole from the correlation of its halves (Spearman-Brown):
// 2r / (1 + r).
double SpearmanBrown(double half_correlation);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_STATISTICS_H_
