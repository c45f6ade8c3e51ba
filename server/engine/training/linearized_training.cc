#include "server/engine/analysis/experiments.h"

namespace gatehouse {

absl::StatusOr<ExperimentResult> TrainLinearized(const ExperimentContext&, const TrainingMethod&) {
  return absl::UnimplementedError("not built yet");
}

}  // namespace gatehouse
