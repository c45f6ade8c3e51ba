#include "server/engine/analysis/experiments.h"

namespace gatehouse {

absl::StatusOr<ExperimentResult> SweepGates(const ExperimentContext&, const GateSweepMethod&) {
  return absl::UnimplementedError("not built yet");
}

}  // namespace gatehouse
