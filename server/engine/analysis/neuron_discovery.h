#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_NEURON_DISCOVERY_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_NEURON_DISCOVERY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/calibration.h"

namespace gatehouse {

// The consensus architecture of an MLP ("The Discrete Charm of the MLP", methods B.4): which
// neurons fire by default and fall silent where the MLP is most nonlinear, which fire there,
// and which lead there.

struct NeuronFindings {
  std::vector<NeuronFinding> consensus, exception, gateway;
};

// How many neurons the rules name, on average over several runs.
struct FindingCounts {
  double consensus = 0, exception = 0, gateway = 0;
};

// Applies the rules.  firing: [tokens, d_mlp] bool, all tokens but sinks; regimes: one a
// token.  Among the 30 neurons with the largest |rate difference high − linear|:
//   exception  difference > 0.3 and base rate < 0.3;
//   consensus  difference < −0.4 and base rate > 0.6, the `max_consensus` most negative;
//   gateway    of the 8 largest, those on in at least 75 % of the (at most 20) on/off
//              patterns of these 8 that are most enriched in the high regime, among
//              patterns that at least 50 tokens have and that are enriched at all.
// Nothing is found where a regime has fewer than 20 tokens.
NeuronFindings DiscoverNeurons(const at::Tensor& firing, std::span<const Regime> regimes, int max_consensus);

inline constexpr int kNullShuffles = 20;  // that calibrations and experiments take

// The null: the mean count of the same rules over `shuffles` shuffles of the regimes.
FindingCounts ShuffledFindings(const at::Tensor& firing, std::span<const Regime> regimes, int max_consensus,
                               int shuffles, uint64_t seed);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_NEURON_DISCOVERY_H_
