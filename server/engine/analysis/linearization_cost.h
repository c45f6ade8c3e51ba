#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_LINEARIZATION_COST_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_LINEARIZATION_COST_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/engine/analysis/logistic_gate.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/surrogate_fit.h"

namespace gatehouse {

// What replacing one layer's MLP costs ("Half the Nonlinearity Is Wasted", methods A.2 and
// A.3).  Everywhere `sinks` is how many positions at the start of each block run in full.

// The relative change of perplexity between two sets of cross-entropies in nats, over the
// same tokens: exp(mean other − mean full) − 1.
double PerplexityChange(const at::Tensor& full, const at::Tensor& other);

// Cross-entropies with the entered layer linear for every token but the sinks:
// [blocks, window − 1] float64.
absl::StatusOr<at::Tensor> LinearCrossEntropy(const ModelWeights& model, int layer, const SplitStream& split,
                                              const Surrogate& surrogate, int sinks, Work& work);

// The same with only the tokens of `linear`, [blocks, window] bool, linear.
absl::StatusOr<at::Tensor> RoutedCrossEntropy(const ModelWeights& model, int layer, const SplitStream& split,
                                              const Surrogate& surrogate, const at::Tensor& linear, Work& work);

// The same with each token on the path its gate chooses at threshold 0.5.
struct GatedRun {
  at::Tensor cross_entropy;    // [blocks, window − 1] float64
  double linear_fraction = 0;  // of all tokens; sinks count as full
};
absl::StatusOr<GatedRun> GatedCrossEntropy(const ModelWeights& model, int layer, const SplitStream& split,
                                           const Surrogate& surrogate, const LogisticGate& gate, int sinks, Work& work);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_LINEARIZATION_COST_H_
