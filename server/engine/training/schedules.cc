#include "server/engine/training/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gatehouse {

TrainingPlan PlanTraining(const TrainingMethod& method, const std::vector<int>& order) {
  switch (method.schedule) {
    case TrainingSchedule::kProgressive:
      return PlanProgressive(method, order);
    case TrainingSchedule::kTwoPhase:
      return PlanTwoPhase(method, order);
    case TrainingSchedule::kRouting:
      return PlanRoutingTraining(method, order);
  }
  return {};
}

TrainingPlan PlanControl(const TrainingMethod& method, const TrainingPlan& plan) {
  TrainingPlan control = plan;
  control.arm = "control";
  for (TrainingStage& stage : control.stages) {
    stage = {.name = "", .first_step = stage.first_step, .change = TrainingStage::Change::kNone, .layers = {}};
  }
  if (method.schedule != TrainingSchedule::kProgressive) {
    control.learning_rate = [base = BaseLearningRate(method), steps = plan.steps](int64_t step) {
      return CosineRate(base, step, steps);
    };
  }
  return control;
}

std::vector<int> DefaultOrder(std::vector<int> layers) {
  std::sort(layers.begin(), layers.end());
  const int count = static_cast<int>(layers.size()), middle = count / 2;
  std::vector<int> order;
  for (int distance = 0; static_cast<int>(order.size()) < std::max(1, middle); ++distance) {
    order.push_back(layers[middle - distance]);
    if (distance > 0 && static_cast<int>(order.size()) < middle) order.push_back(layers[middle + distance]);
  }
  return order;
}

double BaseLearningRate(const TrainingMethod& method) {
  if (method.learning_rate > 0) return method.learning_rate;
  return method.schedule == TrainingSchedule::kProgressive ? 5e-6 : 2e-5;
}

double CosineRate(double base, int64_t step, int64_t steps) {
  if (step >= steps) return 0;
  return base * 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps)));
}

}  // namespace gatehouse
