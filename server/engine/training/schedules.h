#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_SCHEDULES_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_SCHEDULES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/engine/experiment.h"
#include "server/engine/training/trainable_model.h"

namespace gatehouse {

// The pressure toward linear begins after this part of the time in which gates learn.
inline constexpr int kWarmUpParts = 5;

// What happens to the model before a step, and holds from there on.
struct TrainingStage {
  enum class Change {
    kNone,
    // Surrogates, each fitted on the stream that those before it made, replace the MLPs.
    kLinearize,
    // The MLPs come back beside the surrogates, each behind a gate that begins at p = 1/2;
    // everything but the gates freezes.
    kBringBack,
    // Each MLP gets a surrogate beside it and a gate that begins nearly closed; everything
    // learns.
    kGate,
  };
  std::string name;  // for people: "layer 5 linear"
  int64_t first_step = 0;
  Change change = Change::kNone;
  std::vector<int> layers;  // ascending
};

// A way of training, laid out before it starts (methods A.6).
struct TrainingPlan {
  std::string arm;  // "progressive", "two-phase", "routing" or "control"
  int64_t steps = 0;
  std::vector<TrainingStage> stages;
  TrainableModel::Decision decision = TrainableModel::Decision::kHard;  // of gates while training
  std::function<double(int64_t step)> learning_rate;
  std::function<double(int64_t step)> pressure;  // weight of the L1 pressure toward linear
};

// order: the layers to replace, at least one.
TrainingPlan PlanProgressive(const TrainingMethod& method, const std::vector<int>& order);
TrainingPlan PlanTwoPhase(const TrainingMethod& method, const std::vector<int>& order);
TrainingPlan PlanRoutingTraining(const TrainingMethod& method, const std::vector<int>& order);

// The control: the same tokens, steps and kind of schedule with nothing replaced.  A cosine
// runs over all steps, since the control's weights learn to the end.
TrainingPlan PlanControl(const TrainingMethod& method, const TrainingPlan& plan);

// The plan of the method's schedule.
TrainingPlan PlanTraining(const TrainingMethod& method, const std::vector<int>& order);

// From middle layers outwards, half of `layers` (at least one): of 24 layers 12, 11, 13, 10…
std::vector<int> DefaultOrder(std::vector<int> layers);

// The learning rate of the weights at the start: the method's, or the paper's.
double BaseLearningRate(const TrainingMethod& method);

// Half a cosine from `base` at step 0 to 0 at step `steps`; 0 from there on.
double CosineRate(double base, int64_t step, int64_t steps);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_SCHEDULES_H_
