#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_SURROGATE_FIT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_SURROGATE_FIT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace gatehouse {

// The linear surrogate of an MLP ("Half the Nonlinearity Is Wasted", methods A.1):
// ŷ = W x + b.
struct Surrogate {
  at::Tensor weight;       // [d_out, d_in], float32
  at::Tensor bias;         // [d_out], float32
  at::Tensor output_mean;  // ȳ of the tokens fitted on, [d_out], float64

  // x: [..., d_in] float32 → [..., d_out] float32.
  at::Tensor Predict(const at::Tensor& x) const;
};

// The sums that a ridge regression of y on x needs, in float64, gathered piece by piece.
class RidgeSums {
 public:
  RidgeSums(int64_t d_in, int64_t d_out, at::Device device);

  // x: [n, d_in], y: [n, d_out], float32.
  void Add(const at::Tensor& x, const at::Tensor& y);
  void Add(const RidgeSums& other);
  int64_t tokens() const { return tokens_; }

  // W = (X_cᵀX_c + λI)⁻¹ X_cᵀY_c with centred, summed products and an unpenalised bias
  // b = ȳ − W x̄.  FailedPrecondition when there are no tokens or the products are not
  // finite.
  absl::StatusOr<Surrogate> Solve(double lambda) const;

 private:
  int64_t tokens_ = 0;
  at::Tensor x_;   // [d_in]
  at::Tensor y_;   // [d_out]
  at::Tensor xx_;  // [d_in, d_in]
  at::Tensor xy_;  // [d_in, d_out]
};

// R² = 1 − Σ‖y − ŷ‖² / Σ‖y − ȳ_fit‖², pooled over dimensions (A.1).
class R2Sums {
 public:
  // y, predicted: [n, d] float32; fit_mean: [d] float64.
  void Add(const at::Tensor& y, const at::Tensor& predicted, const at::Tensor& fit_mean);
  // Where y does not vary: 1 for a perfect prediction, else 0.
  double Value() const;

 private:
  double residual_ = 0;
  double total_ = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_SURROGATE_FIT_H_
