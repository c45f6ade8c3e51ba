#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_NONLINEARITY_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_NONLINEARITY_H_

#include <cstdint>
#include <span>
#include <vector>

namespace gatehouse {

// The nonlinearity score of a token at a layer is ‖y − ŷ‖ ("The Discrete Charm of the
// MLP", methods B.1).  Its percentiles over a layer's tokens:
struct ScorePercentiles {
  double p25 = 0, p50 = 0, p70 = 0, p95 = 0;
};

// The q-quantile (q in [0, 1]) of ascending values, interpolated as numpy does by
// default.  REQUIRES: not empty.
double Quantile(std::span<const double> ascending, double q);

// REQUIRES: not empty.
ScorePercentiles PercentilesOf(std::span<const double> scores);

// What a score says of its token: linear below P25, high above P95 (B.1).
enum class Regime : uint8_t { kOther, kLinear, kHigh };

std::vector<Regime> RegimesOf(std::span<const double> scores, const ScorePercentiles& percentiles);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_NONLINEARITY_H_
