#include <algorithm>

#include "server/engine/training/schedules.h"

namespace gatehouse {

// Two-phase gating ("Half the Nonlinearity Is Wasted", methods A.6).
//   1. Replace all chosen layers by surrogates and fine-tune, with a cosine.
//   2. Bring the full MLPs back beside the surrogates, freeze everything, and train soft
//      gates: the mixture p ŷ + (1 − p) y, and after a warm-up an L1 pressure on 1 − p.
// Then the gates harden at 0.5.
TrainingPlan PlanTwoPhase(const TrainingMethod& method, const std::vector<int>& order) {
  const int64_t first_phase = int64_t{method.steps_per_layer} * static_cast<int64_t>(order.size());
  std::vector<int> layers = order;
  std::sort(layers.begin(), layers.end());
  TrainingPlan plan;
  plan.arm = "two-phase";
  plan.steps = first_phase + method.final_steps;
  plan.stages = {{"1: linear", 0, TrainingStage::Change::kLinearize, layers},
                 {"2: gates", first_phase, TrainingStage::Change::kBringBack, layers}};
  plan.decision = TrainableModel::Decision::kSoft;
  plan.learning_rate = [base = BaseLearningRate(method), first_phase](int64_t step) {
    return CosineRate(base, step, first_phase);
  };
  plan.pressure = [weight = method.gate_pressure, start = first_phase + method.final_steps / kWarmUpParts](
                      int64_t step) { return step < start ? 0.0 : weight; };
  return plan;
}

}  // namespace gatehouse
