#ifndef GATEHOUSE_SERVER_ENGINE_MLP_WORK_H_
#define GATEHOUSE_SERVER_ENGINE_MLP_WORK_H_

#include <cstdint>
#include <span>

#include "server/engine/model_info.h"

namespace gatehouse {

// Multiplications of the MLPs (methods A.7), the measure of what gating saves.  Only matrix
// products count: biases, norms and activations are no work here.

// Of one token in one layer, by the path it takes.  A ladder keeps `neurons` exact.
int64_t FullMlpWork(const ModelInfo& model);
int64_t LinearMlpWork(const ModelInfo& model);
int64_t LadderMlpWork(const ModelInfo& model, int neurons);
// Of asking the gate, whatever path follows.
int64_t GateWork(const ModelInfo& model);
// Of a quorum gate (B.9), which asks whether each of `neurons` fires.
int64_t QuorumWork(const ModelInfo& model, int neurons);

// How many tokens took which path in one layer, and of how many the gate, or the quorum, was
// asked.  A skipped MLP is no work.
struct LayerTraffic {
  int64_t full = 0, linear = 0, ladder = 0, skip = 0;
  int64_t gated = 0;
  int ladder_neurons = 0;  // of the ladder that `ladder` tokens took
  int64_t quorum = 0;
  int quorum_neurons = 0;  // consensus neurons that the quorum is of
};

// The share of the multiplications of full MLPs that was not done; 0 for no tokens.
// Negative where gates were asked and (almost) nothing was saved.
double MlpWorkSaved(const ModelInfo& model, std::span<const LayerTraffic> layers);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MLP_WORK_H_
