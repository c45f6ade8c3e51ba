#ifndef GATEHOUSE_SERVER_SERVING_INTERVENTIONS_H_
#define GATEHOUSE_SERVER_SERVING_INTERVENTIONS_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/intervention.h"
#include "server/engine/model_info.h"
#include "server/engine/routing.h"
#include "server/engine/step.h"
#include "server/serving/requests.h"

namespace gatehouse {

// What one call changes in the model and takes from it, checked.  An immutable value.
struct CallInterventions {
  std::shared_ptr<const InterventionPlan> plan;  // null: nothing is changed
  std::vector<CaptureSite> captures;
  // Most positions of a row, so that what it captures stays small.
  int most_positions = 0;
  // What the caller should know, beside the policy's own notes.
  std::vector<std::string> notes;

  // Makes the row one of the call.
  void Apply(Row& row) const;
  // What a row captured, in the order of the request.
  std::vector<Activations> Take(std::vector<CapturedSite> captured, const ModelInfo& model) const;
};

// InvalidArgument, naming the field, for anything out of its bounds: also a position at or
// past `positions`, and neurons captured where an intervention leaves none.
absl::StatusOr<CallInterventions> ResolveInterventions(std::vector<Intervention> interventions,
                                                       const std::vector<ActivationCapture>& captures,
                                                       const RoutingPolicy& policy, const ModelInfo& model,
                                                       int64_t positions);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_INTERVENTIONS_H_
