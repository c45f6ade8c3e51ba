#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_LADDER_FIT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_LADDER_FIT_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/surrogate_fit.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// A ladder (methods A.7): the neurons of an MLP that a linear map explains worst, kept
// exact, and a surrogate of what all others write together with the output's bias.
struct Ladder {
  at::Tensor neurons;  // [m] int64, ascending
  Surrogate rest;
};

// Fits a ladder of `neurons` neurons on the split's entered layer.  Kept are the neurons
// with the largest residual energy, Var(a_j − fit_j(x)) · ‖w_out,j‖².  Sinks are left out: by
// position, and tokens whose output's norm is over `norm_limit`.  FailedPrecondition when
// there is nothing to fit on.
absl::StatusOr<Ladder> FitLadder(const ModelWeights& model, int layer, const SplitStream& split, int neurons, int sinks,
                                 double norm_limit, double ridge, Work& work);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_LADDER_FIT_H_
