#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_LEVELS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_LEVELS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "server/engine/analysis/consensus_trace.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {

// What the level of consensus goes with ("The Discrete Charm of the MLP", methods B.5).  All
// over tokens that are no sinks.

struct LevelStatistics {
  int64_t tokens = 0;
  Interval share;           // of all tokens
  Interval exception;       // share on which the leading exception neuron fires; NaN where there is none
  Interval any_exception;   // on which any exception neuron does
  Interval norm, residual;  // mean ‖y‖ and ‖δ‖
};

// One a level, 0..k.
std::vector<LevelStatistics> StatisticsByLevel(const ConsensusTrace& trace, int resamples, uint64_t seed);

// Pearson's correlation of level and ‖δ‖, negative where consensus goes with linearity; NaN
// where the level does not vary.
Interval ConsensusGradient(const ConsensusTrace& trace, int resamples, uint64_t seed);

// How much two neurons avoid each other: 1 − both / either, beside what that is for neurons of
// the same rates that know nothing of each other.
struct Exclusivity {
  double first_rate = 0, second_rate = 0;
  Interval value;          // NaN where neither ever fires
  double independent = 0;  // under independence
  Interval excess;         // value − independent
};
// first, second, kept: [blocks, window] bool.
Exclusivity MeasureExclusivity(const at::Tensor& first, const at::Tensor& second, const at::Tensor& kept, int resamples,
                               uint64_t seed);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_LEVELS_H_
