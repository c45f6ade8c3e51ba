#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_PREDICTION_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_PREDICTION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/engine/analysis/consensus_trace.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {

// Whether it is enough to know which consensus neurons fire, or whether their activations say
// more ("The Discrete Charm of the MLP", methods B.8): a logistic regression predicts the top
// quarter of ‖δ‖, a ridge regression ‖y‖.

// What is predicted from one reading of the consensus neurons, on tokens not fitted on.
struct ConsensusReading {
  Interval accuracy;  // of the top quarter
  Interval gain;      // accuracy − base rate
  Interval auc;
  Interval r2;  // of ‖y‖
};

struct ConsensusPrediction {
  double limit = 0;      // ‖δ‖ above this is the top quarter, of the tokens fitted on
  double base_rate = 0;  // share of the tokens that are not: what always saying so scores
  ConsensusReading binary, continuous;
  Interval accuracy_difference, auc_difference, r2_difference;  // continuous − binary, paired
};

// REQUIRES: there are consensus neurons.
absl::StatusOr<ConsensusPrediction> PredictFromConsensus(const ConsensusTrace& train, const ConsensusTrace& test,
                                                         double ridge, int resamples, uint64_t seed);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_PREDICTION_H_
