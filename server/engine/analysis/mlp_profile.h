#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_MLP_PROFILE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_MLP_PROFILE_H_

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/surrogate_fit.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// Sinks: the first positions of a sequence draw attention and often have enormous MLP
// outputs, which wreck a least-squares fit.  They are left out by position, and so is any
// token whose output is over this many times the layer's median norm.
inline constexpr double kNormLimit = 20;

// The norm of each row; rows: [..., n] → [...], of the same type.
at::Tensor RowNorms(const at::Tensor& rows);

// Which tokens of some blocks are no sinks, by position or norm.  norms: ‖y‖, [blocks, window]
// → the same shape, bool.
at::Tensor KeptByNorm(const at::Tensor& norms, int sinks, double norm_limit);

// The surrogates of one MLP on a fit split.
struct FittedMlp {
  Surrogate surrogate;    // fitted without sinks
  Surrogate with_sinks;   // fitted on every token
  double norm_limit = 0;  // kNormLimit × the median ‖y‖ of the fit split
};

// Fits both on the split's entered layer (methods A.1).  `layer` of `model` is the MLP; it
// reads the split's x() whosever it is.
absl::StatusOr<FittedMlp> FitMlp(const ModelWeights& model, int layer, const SplitStream& split, int sinks,
                                 double ridge, Work& work);

// Which tokens of the split's entered layer are no sinks, by position or norm: [blocks,
// window] bool.
absl::StatusOr<at::Tensor> KeptTokens(const ModelWeights& model, int layer, const FittedMlp& fitted,
                                      const SplitStream& split, int sinks, Work& work);

// What the MLP does on tokens it was not fitted on, sinks left out.
struct MlpObservation {
  std::vector<double> scores;  // ‖y − ŷ‖, one a token (B.1)
  at::Tensor firing;           // [tokens, d_mlp] bool (B.4)
  // Of each split, which tokens these are: [blocks, window] bool.
  std::vector<at::Tensor> kept;
};
absl::StatusOr<MlpObservation> ObserveMlp(const ModelWeights& model, int layer, const FittedMlp& fitted,
                                          std::span<const SplitStream* const> splits, int sinks, Work& work);

// Held-out R² of both surrogates (A.1): without sinks, and over every token.
struct SurrogateR2 {
  double without_sinks = 0;
  double with_sinks = 0;
};
absl::StatusOr<SurrogateR2> MeasureR2(const ModelWeights& model, int layer, const FittedMlp& fitted,
                                      const SplitStream& split, int sinks, Work& work);

// The model with the MLP of one layer drawn anew: normal with each matrix's own standard
// deviation, biases zero.  Everything else is shared.
ModelWeights WithRandomMlp(const ModelWeights& model, int layer, uint64_t seed);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_MLP_PROFILE_H_
