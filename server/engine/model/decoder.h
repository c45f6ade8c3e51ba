#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_DECODER_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_DECODER_H_

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "server/engine/gating/routed_mlp.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/model/kv_cache.h"
#include "server/engine/model/output_head.h"
#include "server/engine/model/step_plan.h"
#include "server/engine/model/weights.h"
#include "server/engine/step.h"

namespace gatehouse {

// Runs steps: embeds each group of rows, takes it through the layers, and reads off what
// its rows asked for.
//
// Owned by the engine; used by one thread at a time.
class Decoder {
 public:
  // All outlive the decoder.
  Decoder(const ModelWeights& model, Kernels& kernels, KvCache& cache);

  // See Engine::Step; every failure is a row's.
  std::vector<RowResult> Step(std::span<const Row> rows);

 private:
  void RunGroup(const StepGroup& group);
  // → the residual stream before layer 0, [rows, d_model] float32.
  at::Tensor Embed(const StepGroup& group);
  // One layer, in place.  residual [rows, d_model] float32.
  void RunLayer(int layer, const StepGroup& group, std::span<const Segment> segments, at::Tensor& residual);

  const ModelWeights& model_;
  Kernels& kernels_;
  KvCache& cache_;
  RoutedMlp mlp_;
  OutputHead head_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_DECODER_H_
