#ifndef GATEHOUSE_SERVER_ENGINE_GATING_LOADED_CALIBRATION_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_LOADED_CALIBRATION_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// A calibration with its tensors on the model's device.  Immutable.
class LoadedCalibration final : public Calibration {
 public:
  // y = joint [x; act(in x)]: the neurons it keeps exact, and the surrogate of all others,
  // in two products.
  struct Ladder {
    LinearWeights in;     // the neurons' rows of mlp_in, [m, d_model]; gated MLP: [2 · m, d_model]
    LinearWeights joint;  // its surrogate, then the neurons' columns of mlp_out: [d_model, d_model + m]
  };

  struct Layer {
    LinearWeights surrogate;    // [d_model, d_model], the serving dtype; bias float32
    at::Tensor gate_weight;     // [d_model], float32
    float gate_bias = 0;        // p = sigmoid(x · gate_weight + gate_bias)
    at::Tensor consensus_rows;  // [k] int64, neuron indices, in the info's order
    at::Tensor exception_rows;  // [e] int64
    // The consensus neurons' rows of mlp_in, of a gated MLP the gates': [k, d_model].  Absent
    // where there are none.
    std::optional<LinearWeights> consensus_in;
    at::Tensor neuron_mean;  // [d_mlp] float32, mean activations; undefined where unknown
    std::optional<Ladder> ladder;
  };

  LoadedCalibration(CalibrationInfo info, std::vector<Layer> layers)
      : Calibration(std::move(info)), layers_(std::move(layers)) {}

  const Layer& layer(int index) const { return layers_[index]; }

  // The tensors of a calibration the engine loaded.
  static const LoadedCalibration& From(const Calibration& calibration) {
    return static_cast<const LoadedCalibration&>(calibration);
  }

 private:
  std::vector<Layer> layers_;
};

// A calibration as it is fitted and stored: float32 on the CPU (docs/calibration-file.md).
struct CalibrationData {
  struct Layer {
    at::Tensor surrogate_weight;  // [d_model out, d_model in], float32
    at::Tensor surrogate_bias;    // [d_model], float32
    at::Tensor gate_weight;       // [d_model], float32
    at::Tensor gate_bias;         // [1], float32
    // The ladder (A.7): a surrogate of what all other neurons write, and the neurons that
    // are computed exactly beside it.  Undefined where the layer has none.
    at::Tensor ladder_weight;   // [d_model out, d_model in], float32
    at::Tensor ladder_bias;     // [d_model], float32
    at::Tensor ladder_neurons;  // [m] int64, ascending
    // Mean of what the down projection reads, act(x W_in) or act(gate) · up, over tokens that
    // are no sinks: [d_mlp], float32.  Undefined where it was not measured.
    at::Tensor neuron_mean;
  };
  CalibrationInfo info;
  std::vector<Layer> layers;
};

// Writes `data` in one step.
absl::Status WriteCalibrationFile(const std::string& path, const CalibrationData& data);

// Reads and checks a file against the model's shapes and fingerprint.
// FailedPrecondition for another model's; InvalidArgument, naming the tensor or key,
// for a damaged one.
absl::StatusOr<CalibrationData> ReadCalibrationFile(const std::string& path, const ModelWeights& model);

// The description alone.
absl::StatusOr<CalibrationInfo> ReadCalibrationFileInfo(const std::string& path);

// Moves a calibration to the model's device and dtype.  Copies what its ladders take of the
// model's weights.
std::shared_ptr<const LoadedCalibration> PlaceCalibration(CalibrationData data, const ModelWeights& model);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_LOADED_CALIBRATION_H_
