#include "server/engine/analysis/statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/item.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "server/engine/analysis/nonlinearity.h"

namespace gatehouse {
namespace {

constexpr int64_t kMostCounts = int64_t{1} << 20;  // held at a time
constexpr double kMostMissing = 0.05;

// Calls `body` with how often each resample holds each block, [n, blocks] float64, piece by
// piece.
template <typename Body>
void ForResamples(int64_t blocks, int resamples, uint64_t seed, const Body& body) {
  std::mt19937_64 random(seed);
  const int64_t piece = std::max<int64_t>(1, kMostCounts / blocks);
  for (int64_t done = 0; done < resamples; done += piece) {
    const int64_t n = std::min(piece, resamples - done);
    const at::Tensor counts = at::zeros({n, blocks}, at::kDouble);
    double* row = counts.mutable_data_ptr<double>();
    for (int64_t i = 0; i < n; ++i, row += blocks) {
      for (int64_t draw = 0; draw < blocks; ++draw) ++row[(random() >> 32) * static_cast<uint64_t>(blocks) >> 32];
    }
    body(counts);
  }
}

// The interval of `estimate` from the statistics of its resamples.
Interval IntervalOf(double estimate, const std::vector<at::Tensor>& pieces) {
  const at::Tensor all = at::cat(pieces).contiguous();
  std::vector<double> values(all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel());
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (std::isnan(estimate) || static_cast<double>(values.size()) < (1 - kMostMissing) * all.numel()) {
    return {estimate, kNone, kNone};
  }
  std::sort(values.begin(), values.end());
  return {estimate, Quantile(values, 0.025), Quantile(values, 0.975)};
}

// How the positives of each block fare against the negatives of each block, so that the AUC
// of any draw of blocks follows from the counts alone.
struct Wins {
  at::Tensor wins;                  // [blocks, blocks] float64: pairs won, a tie being half of one
  at::Tensor positives, negatives;  // [blocks] float64

  // counts: [n, blocks] → [n]; NaN where a class is empty.
  at::Tensor AucOf(const at::Tensor& counts) const {
    return (at::mm(counts, wins) * counts).sum(1) / (at::mv(counts, positives) * at::mv(counts, negatives));
  }
};

Wins CountWins(std::span<const double> scores, std::span<const uint8_t> labels, std::span<const int64_t> blocks,
               int64_t block_count) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  Wins result{at::zeros({block_count, block_count}, at::kDouble), at::zeros({block_count}, at::kDouble),
              at::zeros({block_count}, at::kDouble)};
  double* wins = result.wins.mutable_data_ptr<double>();
  double* positives = result.positives.mutable_data_ptr<double>();
  double* negatives = result.negatives.mutable_data_ptr<double>();  // of lower scores, while we go
  const auto credit = [&](size_t positive, double share) {
    double* row = wins + blocks[positive] * block_count;
    for (int64_t block = 0; block < block_count; ++block) row[block] += share * negatives[block];
  };
  for (size_t first = 0; first < order.size();) {
    // Tokens [first, last) have one score: half the pairs among them are won.
    size_t last = first;
    while (last < order.size() && scores[order[last]] == scores[order[first]]) ++last;
    const std::span tied(order.data() + first, last - first);
    for (const size_t token : tied) {
      if (labels[token]) credit(token, 0.5);
    }
    for (const size_t token : tied) ++(labels[token] ? positives : negatives)[blocks[token]];
    for (const size_t token : tied) {
      if (labels[token]) credit(token, 0.5);
    }
    first = last;
  }
  return result;
}

at::Tensor Everything(int64_t blocks) { return at::zeros({1, blocks}, at::kDouble) + 1; }

}  // namespace

double Mean(const std::vector<double>& values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

Interval BlockBootstrap(const at::Tensor& sums, int resamples, uint64_t seed, const StatisticFn& statistic) {
  std::vector<at::Tensor> pieces;
  const at::Tensor on_cpu = sums.cpu();
  ForResamples(sums.size(0), resamples, seed,
               [&](const at::Tensor& counts) { pieces.push_back(statistic(at::mm(counts, on_cpu))); });
  return IntervalOf(statistic(on_cpu.sum(0, /*keepdim=*/true)).item<double>(), pieces);
}

Interval BootstrapMean(const at::Tensor& values, const at::Tensor& mask, int resamples, uint64_t seed) {
  // A token outside the mask may have no value at all.
  const at::Tensor masked = at::where(mask, values, at::zeros({}, values.options()));
  const at::Tensor sums = at::stack({masked.sum(1), mask.sum(1).to(at::kDouble)}, 1);
  return BlockBootstrap(sums, resamples, seed,
                        [](const at::Tensor& totals) { return totals.select(1, 0) / totals.select(1, 1); });
}

Interval BootstrapPerplexityChange(const at::Tensor& full, const at::Tensor& other, int resamples, uint64_t seed) {
  const auto tokens = static_cast<double>(full.numel());
  // All blocks are of one length, and so all resamples.
  return BlockBootstrap((other - full).sum(1, /*keepdim=*/true), resamples, seed,
                        [&](const at::Tensor& totals) { return (totals.select(1, 0) / tokens).expm1(); });
}

double Auc(std::span<const double> scores, std::span<const uint8_t> labels) {
  const std::vector<int64_t> blocks(scores.size(), 0);
  return CountWins(scores, labels, blocks, 1).AucOf(Everything(1)).item<double>();
}

Interval BootstrapAuc(std::span<const double> scores, std::span<const uint8_t> labels, std::span<const int64_t> blocks,
                      int64_t block_count, int resamples, uint64_t seed) {
  const Wins wins = CountWins(scores, labels, blocks, block_count);
  std::vector<at::Tensor> pieces;
  ForResamples(block_count, resamples, seed, [&](const at::Tensor& counts) { pieces.push_back(wins.AucOf(counts)); });
  return IntervalOf(wins.AucOf(Everything(block_count)).item<double>(), pieces);
}

Interval BootstrapAucDifference(std::span<const double> scores, std::span<const double> base,
                                std::span<const uint8_t> labels, std::span<const int64_t> blocks, int64_t block_count,
                                int resamples, uint64_t seed) {
  const Wins wins = CountWins(scores, labels, blocks, block_count);
  const Wins base_wins = CountWins(base, labels, blocks, block_count);
  const auto difference = [&](const at::Tensor& counts) { return wins.AucOf(counts) - base_wins.AucOf(counts); };
  std::vector<at::Tensor> pieces;
  ForResamples(block_count, resamples, seed, [&](const at::Tensor& counts) { pieces.push_back(difference(counts)); });
  return IntervalOf(difference(Everything(block_count)).item<double>(), pieces);
}

double Pearson(std::span<const double> x, std::span<const double> y) {
  if (x.size() < 2) return kNone;
  const auto n = static_cast<double>(x.size());
  const double x_mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double y_mean = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - x_mean) * (x[i] - x_mean);
    yy += (y[i] - y_mean) * (y[i] - y_mean);
    xy += (x[i] - x_mean) * (y[i] - y_mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : kNone;
}

double SpearmanBrown(double half_correlation) { return 2 * half_correlation / (1 + half_correlation); }

}  // namespace gatehouse
