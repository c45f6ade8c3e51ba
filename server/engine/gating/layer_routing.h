#ifndef GATEHOUSE_SERVER_ENGINE_GATING_LAYER_ROUTING_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_LAYER_ROUTING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/gating/row_set.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/model/step_plan.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// The rows of a group that share a calibration, by what has to be computed for them in
// one layer.
struct CalibrationRows {
  const LoadedCalibration* calibration = nullptr;
  RowSet asked;         // the gate is asked, to decide or for the record
  RowSet quorum;        // the consensus neurons decide
  RowSet linear;        // the surrogate computes
  RowSet ladder;        // the ladder computes
  RowSet nonlinearity;  // run in full, and the surrogate is compared with it
  RowSet consensus;     // run in full, and neurons are recorded; indices into LayerRouting::full
};

// What one layer does with each row of a group.
struct LayerRouting {
  std::vector<MlpPath> path;       // [rows]
  std::vector<float> probability;  // [rows], the gate's p; NaN where it was not asked
  std::vector<float> margin;       // [rows], p − linear threshold; NaN where no gate decided
  // [rows], which consensus neurons fire, where they decided.
  std::vector<std::optional<uint64_t>> quorum_fired;
  RowSet full;
  RowSet skip;
  RowSet norms;  // rows whose output norm is wanted
  std::vector<CalibrationRows> by_calibration;
};

// Whether all rows want the layer's own MLP as it is and no measurement.
bool IsPlain(int layer, const StepGroup& group);

// Decides each row's path by its interventions, then by its policy (the polarity is in
// routing.h), and sorts the rows by it.  x: [rows, d_model] float32, what the MLP reads.
LayerRouting RouteLayer(int layer, const at::Tensor& x, const StepGroup& group, const ModelConfig& config,
                        Kernels& kernels);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_LAYER_ROUTING_H_
