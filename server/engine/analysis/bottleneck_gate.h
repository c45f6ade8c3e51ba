#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_BOTTLENECK_GATE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_BOTTLENECK_GATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/analysis/logistic_gate.h"

namespace gatehouse {

// Gates behind a bottleneck ("Half the Nonlinearity Is Wasted", methods A.3): the inputs
// standardised, their first 2b principal components, and a logistic regression on these, one
// gate for each b of `bottlenecks`.  All of it is linear, so such a gate is a logistic gate
// with d_model + 1 parameters that only 2b + 1 numbers decide.
//
// x: [n, d_model] float32; each b in [1, d_model / 2].  FailedPrecondition when x is not
// finite.
absl::StatusOr<std::vector<LogisticGate>> FitBottleneckGates(const at::Tensor& x, std::span<const uint8_t> labels,
                                                             std::span<const int> bottlenecks);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_BOTTLENECK_GATE_H_
