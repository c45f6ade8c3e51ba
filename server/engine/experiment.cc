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
  std::string operator()(const NonlinearityMethod&) const { return "nonlinearity"; }
  std::string operator()(const PolynomialProbeMethod&) const { return "polynomial_probe"; }
  std::string operator()(const ConsensusMethod&) const { return "consensus"; }
  std::string operator()(const AblationMethod&) const { return "ablation"; }
  std::string operator()(const QuorumMethod&) const { return "quorum"; }
};

}  // namespace

std::string ExperimentKind(const ExperimentMethod& method) { return std::visit(KindOf{}, method); }

}  // namespace gatehouse
