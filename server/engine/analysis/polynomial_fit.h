#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_POLYNOMIAL_FIT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_POLYNOMIAL_FIT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/experiment.h"

namespace gatehouse {

// How much of the residual δ a polynomial of x explains ("The Discrete Charm of the MLP",
// methods B.2).  x is standardised and taken to its principal axes, each coordinate scaled to
// deviation 1.  A polynomial of degree q has the powers 1..q of each coordinate, and with
// products also those of all pairs of coordinates; products of three or more are not seen.
// The powers of a coordinate enter as polynomials that are orthonormal over the training tokens,
// which span the same, so that a ridge weighs each degree alike; every feature is standardised.

// What a block is for: the first two train (70 %), and strengths of the ridge are tuned on the
// second of them; the last judges.
enum class ProbePart : uint8_t { kTrain, kTune, kTest };

// Deals blocks to parts in an order drawn from the seed: 30 % test (two at least), 20 % tune (one
// at least).
std::vector<ProbePart> DealProbeBlocks(int64_t blocks, uint64_t seed);

// How many features a polynomial has.
int64_t PolynomialFeatures(int64_t components, int degree, bool products);
// More than these are refused: their products are held in memory.
inline constexpr int64_t kMostPolynomialFeatures = 4096;

// The tokens of one layer that are probed.
struct ProbeTokens {
  at::Tensor x;                 // [n, d_model] float32
  at::Tensor delta;             // [n, d_model] float32
  std::vector<int64_t> blocks;  // each token's, ascending
};

struct PolynomialFinding {
  int degree = 0;
  bool products = false;
  int64_t features = 0;
  Interval r2 = {};     // on test tokens, at the ridge that was asked for
  double r2_train = 0;  // on the tokens it was fitted on
  double shuffled = 0;  // R² on test tokens after fitting to the residuals of other tokens
  double tuned = 0;     // the multiple of the ridge that did best on the tuning blocks
  Interval tuned_r2 = {};
};

struct PolynomialFindings {
  int64_t train_tokens = 0, test_tokens = 0;
  double variance = 0;  // share of the standardised inputs' variance in the components
  // Powers alone, then with products; each by degree, and degree 1 once in both.
  std::vector<PolynomialFinding> rows;
};

// Judges every degree of the method, and degree 1, which is a second linear map.  R² is
// 1 − Σ‖δ − δ̂‖² / Σ‖δ − mean of the training tokens‖².  `step` is called before each fit.
// Without enough tokens (of the training part more than components, of the test part any) the
// findings have no rows.
absl::StatusOr<PolynomialFindings> FitPolynomials(const ProbeTokens& tokens, const std::vector<ProbePart>& parts,
                                                  const PolynomialProbeMethod& method, int resamples, uint64_t seed,
                                                  const std::function<absl::Status()>& step);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_POLYNOMIAL_FIT_H_
