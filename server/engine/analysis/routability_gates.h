#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_ROUTABILITY_GATES_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_ROUTABILITY_GATES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// What of a token decides whether it may go linear ("Half the Nonlinearity Is Wasted", methods
// A.4): gates that read its identity, its context, or both, by the AUC of what they predict
// on tokens they were not trained on.

// What an MLP reads, split exactly in two (ours; the paper's LN(r) − e mixes spaces): with
// r = e + c and each token's own scale σ(r) frozen, norm(r) = identity + context + β.  The
// scale itself carries some context into both.
struct NormSplit {
  at::Tensor identity;  // e′, of the embedding alone
  at::Tensor context;   // c′, of everything that was written since
};

// residual, embedding: [n, d_model] float32 → both [n, d_model] float32.
NormSplit SplitNorm(const ModelConfig& config, const NormWeights& norm, const at::Tensor& residual,
                    const at::Tensor& embedding);

// For each token the index of another one with the same identity, −1 where there is none: a
// permutation of each identity's tokens that leaves none in its place.
std::vector<int64_t> PartnersOfEqualIdentity(std::span<const int64_t> identities, uint64_t seed);

// The tokens of one layer, and what gates may read of each.
struct RoutabilityTokens {
  at::Tensor ids;    // [blocks, window] int64
  at::Tensor kept;   // [blocks, window] bool: no sinks
  at::Tensor delta;  // δCE with the layer linear, [blocks, window − 1] float64
  // [blocks · window, d_model] float32:
  at::Tensor full;             // x
  NormSplit split;             // of x
  at::Tensor token, target;    // the embeddings of the processed and of the next token
  std::vector<int64_t> tests;  // each block's number among those that test, −1 where it trains
};

struct GateFinding {
  std::string name;
  Interval auc;
  double base_rate = 0;  // of label 1 among the test tokens
  int64_t train_tokens = 0, test_tokens = 0;
};
struct GateDifference {
  std::string name;  // "full - identity"
  Interval auc;      // paired
};
struct RoutabilityFindings {
  std::vector<GateFinding> gates;
  std::vector<GateDifference> differences;
};

// How many gates are trained.
inline constexpr int kRoutabilityGates = 7;

// Trains every gate and its controls on the training blocks and judges them on the others.
// Label 1 is δCE at or below the median of the training tokens.  `step` is called before each
// gate.  FailedPrecondition where a part has no tokens.
absl::StatusOr<RoutabilityFindings> JudgeRoutability(const RoutabilityTokens& tokens, int resamples, uint64_t seed,
                                                     const std::function<absl::Status()>& step);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_ROUTABILITY_GATES_H_
