#ifndef GATEHOUSE_SERVER_SERVING_REQUEST_CHECKS_H_
#define GATEHOUSE_SERVER_SERVING_REQUEST_CHECKS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/routing.h"
#include "server/serving/model_catalog.h"
#include "server/serving/requests.h"

namespace gatehouse {

// What the requests have in common, checked before they are admitted.  `field` names
// the request's field in error messages; no message holds text of the request.

// The tokens of `input`.  InvalidArgument when there are none, when the text is not
// UTF-8, or for an id outside the vocabulary.
absl::StatusOr<std::vector<int32_t>> ResolveInput(const InputText& input, const ServedModel& model,
                                                  std::string_view field);

// The policy that `choice` means for this model now, with the calibration that the
// policy, the records or the interventions need, or that the choice names.
absl::StatusOr<RoutingPolicy> ResolveGating(const GatingChoice& choice, const RecordRequest& records,
                                            const ServedModel& model, std::span<const Intervention> interventions = {});

// Positions a sequence of this model can have: its context, or what the memory for
// keys and values holds where that is less.
int SequenceCapacity(const Engine& engine);

// Each in [0, vocabulary size).
absl::Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, std::string_view field);
// In [0, 20].
absl::Status CheckTopLogprobs(int top_logprobs);
absl::Status CheckStopConditions(const StopConditions& stop, int vocab_size);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_REQUEST_CHECKS_H_
