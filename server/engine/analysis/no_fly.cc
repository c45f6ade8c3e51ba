#include "server/engine/analysis/experiments.h"

namespace gatehouse {

absl::StatusOr<ExperimentResult> FindNoFlyLists(const ExperimentContext&, const NoFlyMethod&) {
  return absl::UnimplementedError("not built yet");
}

}  // namespace gatehouse
