#include "server/engine/mlp_work.h"

namespace gatehouse {
namespace {

// Of one neuron: its row of the first matrix (two rows where the MLP is gated) and its
// column of the last.
int64_t NeuronWork(const ModelInfo& model) { return int64_t{model.gated_mlp ? 3 : 2} * model.d_model; }

}  // namespace

int64_t FullMlpWork(const ModelInfo& model) { return NeuronWork(model) * model.d_mlp; }

int64_t LinearMlpWork(const ModelInfo& model) { return int64_t{model.d_model} * model.d_model; }

int64_t LadderMlpWork(const ModelInfo& model, int neurons) {
  return LinearMlpWork(model) + NeuronWork(model) * neurons;
}

int64_t GateWork(const ModelInfo& model) { return model.d_model; }

int64_t QuorumWork(const ModelInfo& model, int neurons) { return int64_t{neurons} * model.d_model; }

double MlpWorkSaved(const ModelInfo& model, std::span<const LayerTraffic> layers) {
  int64_t tokens = 0;
  double done = 0;
  for (const LayerTraffic& layer : layers) {
    tokens += layer.full + layer.linear + layer.ladder + layer.skip;
    done += static_cast<double>(layer.full) * static_cast<double>(FullMlpWork(model)) +
            static_cast<double>(layer.linear) * static_cast<double>(LinearMlpWork(model)) +
            static_cast<double>(layer.ladder) * static_cast<double>(LadderMlpWork(model, layer.ladder_neurons)) +
            static_cast<double>(layer.gated) * static_cast<double>(GateWork(model)) +
            static_cast<double>(layer.quorum) * static_cast<double>(QuorumWork(model, layer.quorum_neurons));
  }
  if (tokens == 0) return 0;
  return 1 - done / (static_cast<double>(tokens) * static_cast<double>(FullMlpWork(model)));
}

}  // namespace gatehouse
