#include "server/engine/analysis/nonlinearity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gatehouse {

double Quantile(std::span<const double> ascending, double q) {
  const double at = q * static_cast<double>(ascending.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, ascending.size() - 1);
  return std::lerp(ascending[below], ascending[above], at - static_cast<double>(below));
}

ScorePercentiles PercentilesOf(std::span<const double> scores) {
  std::vector<double> sorted(scores.begin(), scores.end());
  std::sort(sorted.begin(), sorted.end());
  return {Quantile(sorted, 0.25), Quantile(sorted, 0.5), Quantile(sorted, 0.7), Quantile(sorted, 0.95)};
}

std::vector<Regime> RegimesOf(std::span<const double> scores, const ScorePercentiles& percentiles) {
  std::vector<Regime> regimes(scores.size(), Regime::kOther);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] < percentiles.p25) regimes[i] = Regime::kLinear;
    if (scores[i] > percentiles.p95) regimes[i] = Regime::kHigh;
  }
  return regimes;
}

}  // namespace gatehouse
