#include <string>

#include "server/base/strings.h"
#include "server/engine/training/schedules.h"

namespace gatehouse {

// Progressive linearization ("Half the Nonlinearity Is Wasted", methods A.6): replace one
// layer after another by its surrogate, fine-tune what is left after each, and let a final
// stretch follow.  The learning rate is constant.
TrainingPlan PlanProgressive(const TrainingMethod& method, const std::vector<int>& order) {
  TrainingPlan plan;
  plan.arm = "progressive";
  for (const int layer : order) {
    plan.stages.push_back({StrCat("layer ", layer, " linear"), plan.steps, TrainingStage::Change::kLinearize, {layer}});
    plan.steps += method.steps_per_layer;
  }
  if (method.final_steps > 0) {
    plan.stages.push_back({"final stretch", plan.steps, TrainingStage::Change::kNone, {}});
    plan.steps += method.final_steps;
  }
  plan.learning_rate = [base = BaseLearningRate(method)](int64_t) { return base; };
  plan.pressure = [](int64_t) { return 0.0; };
  return plan;
}

}  // namespace gatehouse
