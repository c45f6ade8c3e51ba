#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_MEAN_ACTIVATIONS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_MEAN_ACTIVATIONS_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// The mean activation of each neuron of the split's entered layer, what mean ablation puts in
// the place of its own: of act(x W_in), of a gated MLP act(gate) · up.  kept: which tokens
// count, [blocks, window] bool → [d_mlp] float32 on the CPU.  FailedPrecondition where none do.
absl::StatusOr<at::Tensor> MeanActivations(const ModelWeights& model, int layer, const SplitStream& split,
                                           const at::Tensor& kept, Work& work);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_MEAN_ACTIVATIONS_H_
