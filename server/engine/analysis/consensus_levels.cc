#include "server/engine/analysis/consensus_levels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "server/engine/analysis/statistics.h"
#include "server/engine/gating/firing.h"

namespace gatehouse {
namespace {

// 1 − both / either.  totals: [n, 4] float64: tokens, first, second, both.
at::Tensor ExclusivityOf(const at::Tensor& totals) {
  const at::Tensor both = totals.select(1, 3);
  return 1 - both / (totals.select(1, 1) + totals.select(1, 2) - both);
}

// The same for neurons of these rates that are independent.
at::Tensor IndependentExclusivity(const at::Tensor& totals) {
  const at::Tensor first = totals.select(1, 1) / totals.select(1, 0),
                   second = totals.select(1, 2) / totals.select(1, 0);
  return 1 - first * second / (first + second - first * second);
}

// totals: [n, 6] float64: tokens, x, y, x², y², xy.
at::Tensor CorrelationOf(const at::Tensor& totals) {
  const auto mean = [&](int column) { return totals.select(1, column) / totals.select(1, 0); };
  const at::Tensor x_variance = mean(3) - mean(1).square(), y_variance = mean(4) - mean(2).square();
  const at::Tensor r = (mean(5) - mean(1) * mean(2)) / (x_variance * y_variance).sqrt();
  // Where x does not vary rounding may leave a trace of it.
  const at::Tensor varies = x_variance > 1e-12 * (1 + mean(3));
  return at::where(varies, r, at::zeros({}, r.options()) + kNone);
}

// Sums of each block over the tokens of `kept`: [blocks, columns] float64.
at::Tensor BlockSums(const std::vector<at::Tensor>& columns, const at::Tensor& kept) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& column : columns) {
    const at::Tensor values = column.to(at::kDouble);
    sums.push_back(at::where(kept, values, at::zeros({}, values.options())).sum(1));
  }
  return at::stack(sums, 1);
}

}  // namespace

std::vector<LevelStatistics> StatisticsByLevel(const ConsensusTrace& trace, int resamples, uint64_t seed) {
  const auto mean = [&](const at::Tensor& values, const at::Tensor& mask) {
    return BootstrapMean(values.to(at::kDouble), mask, resamples, seed);
  };
  const bool has_exception = trace.exception.size(2) > 0;
  const Interval none{kNone, kNone, kNone};
  std::vector<LevelStatistics> levels;
  for (int64_t level = 0; level <= trace.most(); ++level) {
    const at::Tensor here = trace.level == level, mask = here & trace.kept;
    levels.push_back({.tokens = mask.sum().item<int64_t>(),
                      .share = mean(here, trace.kept),
                      .exception = has_exception ? mean(trace.leading_exception(), mask) : none,
                      .any_exception = has_exception ? mean((trace.exception > kFiringThreshold).any(2), mask) : none,
                      .norm = mean(trace.norm, mask),
                      .residual = mean(trace.residual, mask)});
  }
  return levels;
}

Interval ConsensusGradient(const ConsensusTrace& trace, int resamples, uint64_t seed) {
  const at::Tensor x = trace.level.to(at::kDouble), &y = trace.residual;
  return BlockBootstrap(BlockSums({trace.kept, x, y, x * x, y * y, x * y}, trace.kept), resamples, seed, CorrelationOf);
}

Exclusivity MeasureExclusivity(const at::Tensor& first, const at::Tensor& second, const at::Tensor& kept, int resamples,
                               uint64_t seed) {
  const at::Tensor sums = BlockSums({kept, first, second, first & second}, kept);
  const at::Tensor totals = sums.sum(0, /*keepdim=*/true);
  const auto rate = [&](int column) { return (totals[0][column] / totals[0][0]).item<double>(); };
  return {.first_rate = rate(1),
          .second_rate = rate(2),
          .value = BlockBootstrap(sums, resamples, seed, ExclusivityOf),
          .independent = IndependentExclusivity(totals).item<double>(),
          .excess = BlockBootstrap(sums, resamples, seed, [](const at::Tensor& drawn) {
            return ExclusivityOf(drawn) - IndependentExclusivity(drawn);
          })};
}

}  // namespace gatehouse
