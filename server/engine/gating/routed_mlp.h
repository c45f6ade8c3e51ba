#ifndef GATEHOUSE_SERVER_ENGINE_GATING_ROUTED_MLP_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_ROUTED_MLP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "server/engine/gating/layer_routing.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/model/step_plan.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// The MLPs of a model, each token through the path its policy gives it: the layer's own
// MLP, its linear surrogate (paper A), its ladder (methods A.7) or nothing.  Only that path is
// computed: where all rows agree nothing is gathered, else the rows are partitioned.
//
// Owned by the decoder; used by one thread at a time.
class RoutedMlp {
 public:
  // Both outlive this object.
  RoutedMlp(const ModelWeights& model, Kernels& kernels) : model_(model), kernels_(kernels) {}

  // x: [rows, d_model] float32, what the layer's MLP reads → [rows, d_model] float32, what
  // it writes.  Counts the paths taken, changes and captures neurons, and fills in the records
  // that rows asked for.
  at::Tensor Run(int layer, const at::Tensor& x, const StepGroup& group);

 private:
  struct Computed {
    at::Tensor y;            // [rows, d_model] float32
    at::Tensor activations;  // of the full rows, [full rows, d_mlp] float32; where a record needs them
  };
  // What the records of a group are filled from, one entry a row; empty where no row
  // asked.
  struct Measurements {
    std::vector<float> nonlinearity, norm;
    std::vector<uint64_t> fired, exceptions;
  };

  Computed Compute(int layer, const at::Tensor& x, const StepGroup& group, const LayerRouting& routing);
  Measurements Measure(int layer, const at::Tensor& x, const Computed& computed, const StepGroup& group,
                       const LayerRouting& routing);
  static void Record(int layer, const PlannedRow& row, const LayerRouting& routing, const Measurements& measured);

  // The surrogate of some rows of x → [rows.size(), d_model] float32.
  at::Tensor Surrogate(int layer, const at::Tensor& x, const StepGroup& group, const LoadedCalibration& calibration,
                       const RowSet& rows);

  // The ladder of some rows of x → [rows.size(), d_model] float32.
  at::Tensor Ladder(const at::Tensor& x, const StepGroup& group, const LoadedCalibration::Ladder& ladder,
                    const RowSet& rows);

  // act(x inᵀ), of a gated MLP act(gate) · up: [rows, neurons].  `activations`, where not
  // null, receives act(x inᵀ), of the gate for a gated MLP.
  at::Tensor Hidden(const at::Tensor& x, const LinearWeights& in, RowGroup group, at::Tensor* activations);

  // The layer's own MLP of the rows that run in full, their neurons changed and captured as
  // the rows ask → [full rows, d_model] float32; `activations` as for Hidden, as they were
  // before any change.
  at::Tensor Full(int layer, const at::Tensor& x, const StepGroup& group, const RowSet& full, at::Tensor* activations);

  const ModelWeights& model_;
  Kernels& kernels_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_ROUTED_MLP_H_
