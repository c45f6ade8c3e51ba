#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_LOGISTIC_GATE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_LOGISTIC_GATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse {

// The gate of a layer ("Half the Nonlinearity Is Wasted", methods A.3): p(linear is fine)
// = sigmoid(x · weight + bias), d_model + 1 parameters.
struct LogisticGate {
  at::Tensor weight;  // [d_model], float32
  at::Tensor bias;    // [1], float32

  // x: [..., d_model] float32 → p [...].
  at::Tensor Probability(const at::Tensor& x) const;
};

// The largest δCE = CE_linear − CE_full that is still fine: the median, or the 25th percentile
// where under 5 % of δCE are negative (A.3).  REQUIRES: not empty.
double GateLabelLimit(std::span<const double> delta_ce);

// Which tokens a linear layer is fine for: those at or below that limit.  REQUIRES: not empty.
std::vector<uint8_t> GateLabels(std::span<const double> delta_ce);

// Logistic regression with an L2 penalty of strength C in scikit-learn's convention,
// ½‖w‖² + C Σ loss, on standardised inputs, the standardisation folded into the result;
// Newton's method in float64.  x: [n, d_model] float32.  Where all labels are alike there
// is nothing to learn from x: the weight is 0 and the bias the smoothed log-odds.
// FailedPrecondition when x is not finite.
absl::StatusOr<LogisticGate> FitLogisticGate(const at::Tensor& x, std::span<const uint8_t> labels, double c = 1.0);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_LOGISTIC_GATE_H_
