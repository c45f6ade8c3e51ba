#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_SENSITIVITY_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_SENSITIVITY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// How a model's predictions answer to a change of what an MLP writes (methods A.7).  Next
// tokens are drawn from the model's own predictions; g is the gradient of the sequence's
// Σ −log p(drawn) for what the layer wrote at a token.  Then E[½ (g · δ)²] is, to second
// order, how much KL(full ‖ changed), summed over the sequence in nats, a change δ there
// brings.

// Calls `body` for every block and layer.  x, gradient: [1, window, d_model] float32, what the
// MLP read and g.  ids: [blocks, window] int64.  Call outside inference mode.
absl::Status ForSensitivities(
    const ModelWeights& model, const at::Tensor& ids, uint64_t seed, Work& work,
    const std::function<void(int layer, const at::Tensor& x, const at::Tensor& gradient)>& body);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_SENSITIVITY_H_
