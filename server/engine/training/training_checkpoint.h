#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_CHECKPOINT_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_CHECKPOINT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/training/adamw.h"

namespace gatehouse {

// One measurement on the way.
struct CurvePoint {
  int64_t step = 0;
  int stage = 0;               // stages begun: two points of one step differ in it
  double perplexity = 0;       // on the report split, hard decisions
  double linear_fraction = 0;  // of all tokens in all layers
  double training_loss = 0;    // mean since the point before, nats; NaN where there was no step
  double gradient_norm = 0;    // mean since the point before, before clipping; NaN likewise
};

// What a surrogate was fitted as when it took its place.
struct SurrogateFit {
  int layer = 0;
  double r2 = 0;  // on the report split, sinks left out
};

// How far a training is, beside its tensors.
struct TrainingProgress {
  int64_t step = 0;
  int stage = 0;  // stages begun
  double loss_sum = 0, norm_sum = 0;
  int64_t summed_steps = 0;
  std::vector<CurvePoint> curve;
  std::vector<SurrogateFit> fits;
};

// What makes two trainings the same, by name; a checkpoint is taken up again by no other.
using TrainingIdentity = std::map<std::string, std::string>;

// All that a training needs to go on exactly as if it had never stopped: which batch a step
// sees follows from the seed and the step, so there is no other random state.
struct TrainingCheckpoint {
  TrainingProgress progress;
  std::map<std::string, at::Tensor> parameters;  // by name, float32
  std::map<std::string, AdamW::Moments> moments;
};

// Writes a safetensors file in one step.  Its metadata carry the identity, the progress and a
// digest of everything else.
absl::Status WriteTrainingCheckpoint(const std::string& path, const TrainingIdentity& identity,
                                     const TrainingCheckpoint& checkpoint);

// NotFound where there is none; FailedPrecondition naming the first difference where it is
// another training's; InvalidArgument where it is damaged.
absl::StatusOr<TrainingCheckpoint> ReadTrainingCheckpoint(const std::string& path, const TrainingIdentity& identity);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_CHECKPOINT_H_
