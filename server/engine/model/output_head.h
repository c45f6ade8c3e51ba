#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_OUTPUT_HEAD_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_OUTPUT_HEAD_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "server/engine/kernels/kernels.h"
#include "server/engine/model/step_plan.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// The end of a step: final norm, output projection, and from its logits the sampled
// tokens and the log-probabilities of targets.  The vocabulary is projected for the
// positions that need it only, in slices, so that memory stays bounded.
//
// Owned by the decoder; used by one thread at a time.
class OutputHead {
 public:
  // Both outlive this object.
  OutputHead(const ModelWeights& model, Kernels& kernels) : model_(model), kernels_(kernels) {}

  // residual: [rows, d_model] float32, after the last layer.  Fills in the results of the
  // group's rows; Internal where a row's numbers are not finite.  Rows that were
  // cancelled are left out.
  void Run(const at::Tensor& residual, const StepGroup& group);

 private:
  // A position whose logits are wanted.
  struct Wanted {
    const PlannedRow* row = nullptr;
    int offset = 0;  // of the row
  };

  void FindNonFinite(const at::Tensor& residual, const StepGroup& group);
  void RunSlice(const at::Tensor& residual, RowGroup kind, std::span<const Wanted> slice, bool sample);
  void Sample(const at::Tensor& logits, std::span<const Wanted> slice);
  void Score(const at::Tensor& logits, std::span<const Wanted> slice);

  const ModelWeights& model_;
  Kernels& kernels_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_OUTPUT_HEAD_H_
