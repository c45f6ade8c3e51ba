#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_DAMAGE_GATE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_DAMAGE_GATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/gated_forward.h"

namespace gatehouse {

// Gates that are comparable across layers (methods A.7, ours).  A token's damage in a layer is
// how much KL(full ‖ linear) the surrogate's error brings (see sensitivity.h).  Its mean is
// modelled as exp(w · x + c).
//
// With damages adding up, the least damage for a given amount of work saved has a price μ of
// work: a token goes linear where the predicted damage is under μ · (what linear saves), takes
// the ladder where that is better.  So the gate's logit is −log(damage / what is saved), one
// shift of all logits together is a change of the price, and a ladder's gap follows from its
// share ρ of the surrogate's damage.

// Sets the gates and ladder gaps of `paths` from the split, which is restarted.  The price is
// such that decisions at logit 0 save `work_saved` of the MLP work on the split (or as much as
// can be).  FailedPrecondition when there are no tokens but sinks.
absl::Status SetDamageGates(const ModelWeights& model, int sinks, double work_saved, uint64_t seed, SplitStream& split,
                            std::vector<CheapPaths>& paths, Work& work);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_DAMAGE_GATE_H_
