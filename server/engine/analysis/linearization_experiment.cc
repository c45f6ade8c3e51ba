#include "server/engine/analysis/experiments.h"

namespace gatehouse {

absl::StatusOr<ExperimentResult> MeasureLinearizationCosts(const ExperimentContext&) {
  return absl::UnimplementedError("not built yet");
}

}  // namespace gatehouse
