#include "server/engine/experiment.h"

namespace gatehouse {
namespace {

struct KindOf {
  std::string operator()(const LinearizationCostMethod&) const { return "linearization_cost"; }
  std::string operator()(const GateSweepMethod&) const { return "gate_sweep"; }
  std::string operator()(const RoutabilityMethod&) const { return "routability"; }
  std::string operator()(const NoFlyMethod&) const { return "no_fly"; }
  std::string operator()(const TrainingMethod& method) const {
    switch (method.schedule) {
      case TrainingSchedule::kProgressive:
        return "progressive";
      case TrainingSchedule::kTwoPhase:
        return "two_phase";
      case TrainingSchedule::kRouting:
        return "routing_training";
    }
    return "training";
  }
};

}  // namespace

std::string ExperimentKind(const ExperimentMethod& method) { return std::visit(KindOf{}, method); }

}  // namespace gatehouse
