#include "server/engine/analysis/linearization_cost.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "server/base/status_macros.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {

double PerplexityChange(const at::Tensor& full, const at::Tensor& other) {
  return std::expm1((other - full).mean().item<double>());
}

absl::StatusOr<at::Tensor> LinearCrossEntropy(const ModelWeights& model, int layer, const SplitStream& split,
                                              const Surrogate& surrogate, int sinks, Work& work) {
  return split.CrossEntropyWith(
      [&](const at::Tensor& x) {
        at::Tensor written = surrogate.Predict(x);
        if (sinks > 0) written.narrow(1, 0, sinks).copy_(PlainMlp(model, layer, x.narrow(1, 0, sinks)));
        return written;
      },
      work);
}

absl::StatusOr<at::Tensor> RoutedCrossEntropy(const ModelWeights& model, int layer, const SplitStream& split,
                                              const Surrogate& surrogate, const at::Tensor& linear, Work& work) {
  int64_t block = 0;  // the batches come in order
  return split.CrossEntropyWith(
      [&](const at::Tensor& x) {
        const at::Tensor route = linear.narrow(0, block, x.size(0)).unsqueeze(-1);
        block += x.size(0);
        return at::where(route, surrogate.Predict(x), PlainMlp(model, layer, x));
      },
      work);
}

absl::StatusOr<GatedRun> GatedCrossEntropy(const ModelWeights& model, int layer, const SplitStream& split,
                                           const Surrogate& surrogate, const LogisticGate& gate, int sinks,
                                           Work& work) {
  int64_t linear_tokens = 0;
  GatedRun run;
  GH_ASSIGN_OR_RETURN(run.cross_entropy, split.CrossEntropyWith(
                                             [&](const at::Tensor& x) {
                                               at::Tensor linear = gate.Probability(x) > 0.5;  // [blocks, window]
                                               linear.narrow(1, 0, sinks).fill_(false);
                                               linear_tokens += linear.sum().item<int64_t>();
                                               return at::where(linear.unsqueeze(-1), surrogate.Predict(x),
                                                                PlainMlp(model, layer, x));
                                             },
                                             work));
  run.linear_fraction = static_cast<double>(linear_tokens) / static_cast<double>(split.tokens());
  return run;
}

}  // namespace gatehouse
