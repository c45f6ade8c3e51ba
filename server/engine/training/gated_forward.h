#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_GATED_FORWARD_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_GATED_FORWARD_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "server/engine/calibration.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/mlp_work.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {

// Whole-model gating on the plain path (methods A.7): each token of each layer goes through
// the layer's surrogate, its ladder, or its own MLP.

// Surrogate, gate and ladder of one layer while they are being made: on the model's device,
// and leaves of the differentiable path where they learn.
struct CheapPaths : CalibrationData::Layer {
  // [1]: a token whose logit is over 0 goes linear, one over −ladder_gap takes the ladder.
  // Undefined where there is no ladder.
  at::Tensor ladder_gap;

  // Those that there are.
  std::vector<at::Tensor*> Tensors();
};

// x: [..., d_model] float32 → what the surrogate or the ladder writes, the same shape.
// neurons: PlainNeurons of x, [..., d_mlp].
at::Tensor SurrogateWrites(const CheapPaths& paths, const at::Tensor& x);
at::Tensor LadderWrites(const ModelWeights& model, int layer, const CheapPaths& paths, const at::Tensor& x,
                        const at::Tensor& neurons);

// x: [..., d_model] float32 → x · w + b, [...]; p is its sigmoid.
at::Tensor GateLogits(const CheapPaths& paths, const at::Tensor& x);

// The shape of a model that the counting of work needs.
ModelInfo WorkShape(const ModelConfig& config);

// The MLPs of a model at an operating point, each token on one path, as serving computes
// them; counts the tokens of each path.  Everything it is given outlives it; used by one
// thread.
class GatedMlps {
 public:
  GatedMlps(const ModelWeights& model, const std::vector<CheapPaths>& paths, const std::vector<OperatingLayer>& point,
            int sinks);

  // x: [batch, tokens, d_model] float32, whole sequences → the same shape.
  at::Tensor Write(int layer, const at::Tensor& x);

  const std::vector<LayerTraffic>& traffic() const { return traffic_; }

 private:
  const ModelWeights& model_;
  const std::vector<CheapPaths>& paths_;
  const std::vector<OperatingLayer>& point_;
  const int sinks_;
  std::vector<LayerTraffic> traffic_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_GATED_FORWARD_H_
