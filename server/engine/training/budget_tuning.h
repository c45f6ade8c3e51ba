#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_BUDGET_TUNING_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_BUDGET_TUNING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/gated_forward.h"

namespace gatehouse {

struct TuningOptions {
  int steps = 200;
  int sequences = 4;        // a step
  double work_saved = 0.3;  // the share of MLP work to save
  int sinks = 4;
  // Steps of Adam: of surrogates and ladders against the size (root mean square) of each
  // tensor; of gate weights likewise, of gate biases and ladder gaps in nats.
  double learning_rate = 0.006;
  double gate_learning_rate = 0.02;
  uint64_t seed = 0;
};

// One step of tuning, over the tokens that are no sinks.
struct TuningStep {
  double divergence = 0;  // KL(full ‖ gated), nats a token
  double work_saved = 0;  // by the decisions that were taken at logit 0
};

// Joint tuning (methods A.7): the surrogates, ladders and gates of all layers learn together
// so that the gated model keeps the full model's predictions while it saves the wanted share
// of MLP work.  The model's own weights are frozen and never written.
//
// Every token of every layer takes one path, decided by its gate; the gradient is that of
// the soft decision (straight-through).  The loss is KL(full ‖ gated) less λ times the work
// saved, where λ rises while too little is saved and falls while too much is.  One in four
// sequences decides at logit 0, where `work_saved` is aimed at; the others with all logits
// lowered, at a price of work that is lower in proportion, so that what is learned serves the
// points that save less as well.
//
// ids: [blocks, window] int64, the text to tune on.  `paths` are tuned in place, plain tensors
// again afterwards.  Cancelled once that is asked for.  Call outside inference mode.
absl::StatusOr<std::vector<TuningStep>> TuneGating(const ModelWeights& model, const at::Tensor& ids,
                                                   const TuningOptions& options, std::vector<CheapPaths>& paths,
                                                   Work& work);

// The loss of one sequence, KL(full ‖ gated) − work_weight · work saved, times `scale`; its
// gradients are added to those of the paths that require them.
struct GatedLossOptions {
  int sinks = 4;
  double shift = 0;  // all logits are lowered by it
  double work_weight = 0;
  double scale = 1;
};
struct GatedLoss {
  double divergence = 0;
  double work_saved = 0;
};
// ids: [1, window] int64; full: the full model's residual stream after its last layer, [1,
// window, d_model] float32.
GatedLoss AccumulateGatedLoss(const ModelWeights& model, const std::vector<CheapPaths>& paths, const at::Tensor& ids,
                              const at::Tensor& full, const GatedLossOptions& options);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_BUDGET_TUNING_H_
