#include "server/engine/training/sensitivity.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "server/base/status_macros.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

// The gradient of Σ −log p(drawn) for the final residual stream: rows [rows, d_model].
at::Tensor DrawnGradient(const ModelWeights& model, const at::Tensor& rows, at::Generator& random) {
  at::Tensor gradient = at::empty_like(rows);
  for (int64_t first = 0; first < rows.size(0); first += kPlainLogitRows) {
    const int64_t count = std::min(kPlainLogitRows, rows.size(0) - first);
    const at::Tensor part = rows.narrow(0, first, count).detach().requires_grad_(true);
    const at::Tensor log_probs = PlainLogits(model, part).log_softmax(-1);
    const at::Tensor drawn = at::multinomial(log_probs.detach().exp().cpu(), 1, /*replacement=*/true, random);
    (-log_probs.gather(1, drawn.to(rows.device())).sum()).backward();
    gradient.narrow(0, first, count).copy_(part.grad());
  }
  return gradient;
}

}  // namespace

absl::Status ForSensitivities(
    const ModelWeights& model, const at::Tensor& ids, uint64_t seed, Work& work,
    const std::function<void(int layer, const at::Tensor& x, const at::Tensor& gradient)>& body) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const int layers = model.config.layers;
  for (int64_t block = 0; block < ids.size(0); ++block) {
    GH_RETURN_IF_ERROR(work.Step(3.0 * static_cast<double>(ids.size(1)) * layers));
    std::vector<at::Tensor> read(layers), change(layers);
    const at::Tensor last =
        PlainLayers(model, PlainEmbed(model, ids.narrow(0, block, 1)), 0, layers, [&](int layer, const at::Tensor& x) {
          read[layer] = x.detach();
          change[layer] = at::zeros_like(read[layer]).requires_grad_(true);
          return PlainMlp(model, layer, x) + change[layer];
        });
    const at::Tensor gradient = DrawnGradient(model, last.detach().flatten(0, 1), random);
    (last.flatten(0, 1) * gradient).sum().backward();
    for (int layer = 0; layer < layers; ++layer) body(layer, read[layer], change[layer].grad());
  }
  return absl::OkStatus();
}

}  // namespace gatehouse
