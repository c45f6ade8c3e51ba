#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_TRACE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_TRACE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/neuron_discovery.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// The consensus architecture of one layer, found on some tokens and followed on others ("The
// Discrete Charm of the MLP", methods B.4 and B.5).

struct FoundConsensus {
  FittedMlp fitted;
  NeuronFindings neurons;
  FindingCounts shuffled;  // the null of shuffled regimes
  at::Tensor kept;         // which tokens they were found on, [blocks, window] bool: no sinks
};

// Fits the surrogate on one split's entered layer and finds the neurons on another's: three
// passes.  No shuffles, no null.
struct ConsensusSearch {
  int sinks = 4;
  double ridge = 0.01;
  int max_consensus = 7;
  int shuffles = 0;
  uint64_t seed = 0;
};
absl::StatusOr<FoundConsensus> FindLayerConsensus(const ModelWeights& model, int layer, const SplitStream& fit,
                                                  const SplitStream& find, const ConsensusSearch& search, Work& work);

// What the neurons do at each token of a split.
struct ConsensusTrace {
  at::Tensor kept;                           // [blocks, window] bool: no sinks
  at::Tensor consensus, exception, gateway;  // activations, [blocks, window, neurons of that kind] float32
  at::Tensor level;                          // how many consensus neurons fire, [blocks, window] int64
  at::Tensor norm, residual;                 // ‖y‖ and ‖δ‖, [blocks, window] float64

  int64_t most() const { return consensus.size(2); }
  // Whether the exception neuron of the largest rate difference fires, [blocks, window] bool.
  // REQUIRES: there is one.
  at::Tensor leading_exception() const;
};

// One pass over the split's entered layer.
absl::StatusOr<ConsensusTrace> TraceConsensus(const ModelWeights& model, int layer, const FoundConsensus& found,
                                              const SplitStream& split, int sinks, Work& work);

// Of one of the neurons, from its activations [blocks, window] on a split: the base rate and
// the rate difference by the split's own regimes.  NaN where a regime has no token.
NeuronFinding RatesOf(int neuron, const at::Tensor& activations, const ConsensusTrace& trace);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_TRACE_H_
