#include "server/engine/analysis/mean_activations.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/zeros.h>

#include "server/base/status_macros.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {

absl::StatusOr<at::Tensor> MeanActivations(const ModelWeights& model, int layer, const SplitStream& split,
                                           const at::Tensor& kept, Work& work) {
  at::Tensor sum = at::zeros({model.config.d_mlp}, split.x().options().dtype(at::kDouble));
  int64_t tokens = 0;
  GH_RETURN_IF_ERROR(split.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * split.window())));
    const at::Tensor neurons =
        PlainNeurons(model, layer, split.x().narrow(0, first, count)).index({kept.narrow(0, first, count)});
    sum.add_(neurons.sum(0, /*keepdim=*/false, at::kDouble));
    tokens += neurons.size(0);
    return absl::OkStatus();
  }));
  if (tokens == 0) return absl::FailedPreconditionError("every token of the gate split is a sink");
  return sum.div_(static_cast<double>(tokens)).to(at::kFloat).cpu();
}

}  // namespace gatehouse
