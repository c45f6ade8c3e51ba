#ifndef GATEHOUSE_SERVER_ENGINE_GATING_INTERVENTIONS_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_INTERVENTIONS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "server/engine/gating/row_set.h"
#include "server/engine/intervention.h"
#include "server/engine/model/step_plan.h"

namespace gatehouse {

// What rows change while they pass through a layer, and what they take from it
// (server/engine/intervention.h).  Each row's own rows of the activations are read and
// written, no others.

// Whether the row changes its path or its neurons in this layer, or wants the neurons.
bool ChangesMlp(int layer, const PlannedRow& row);

// The path that each of the row's positions has to take in this layer, whatever its policy
// says; none where the policy decides.  Empty where it does for all.
std::vector<std::optional<MlpPath>> ForcedPaths(int layer, const PlannedRow& row);

// Makes the group's changes at a site, in place, then copies what its rows capture there.
// activations: [rows, width] float32, of all rows of the group, or of those in `of`.
void PassSite(int layer, ActivationSite site, const StepGroup& group, at::Tensor& activations,
              const RowSet* of = nullptr);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_INTERVENTIONS_H_
