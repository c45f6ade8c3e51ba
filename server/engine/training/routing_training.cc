#include <algorithm>

#include "server/engine/training/schedules.h"

namespace gatehouse {

// In-training routing (the future work of "Half the Nonlinearity Is Wasted", methods A.6):
// fine-tune with gates on.  Each token takes one path, by a hard decision whose gradient is
// that of the soft mixture (straight-through), so that weights, surrogates and gates learn
// together and the loss sees what the decisions of all layers do together.  The gates begin
// nearly closed; after a warm-up the L1 pressure opens them where that costs least.
TrainingPlan PlanRoutingTraining(const TrainingMethod& method, const std::vector<int>& order) {
  std::vector<int> layers = order;
  std::sort(layers.begin(), layers.end());
  TrainingPlan plan;
  plan.arm = "routing";
  plan.steps = int64_t{method.steps_per_layer} * static_cast<int64_t>(order.size()) + method.final_steps;
  plan.stages = {{"gates on", 0, TrainingStage::Change::kGate, layers}};
  plan.decision = TrainableModel::Decision::kStraightThrough;
  plan.learning_rate = [base = BaseLearningRate(method), steps = plan.steps](int64_t step) {
    return CosineRate(base, step, steps);
  };
  plan.pressure = [weight = method.gate_pressure, start = plan.steps / kWarmUpParts](int64_t step) {
    return step < start ? 0.0 : weight;
  };
  return plan;
}

}  // namespace gatehouse
