#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_PRINCIPAL_AXES_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_PRINCIPAL_AXES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gatehouse {

// Inputs, standardised, on their principal axes: (x − mean) @ axes.
struct PrincipalAxes {
  at::Tensor mean;      // [d], float64
  at::Tensor axes;      // [d, components], float64, divided by each dimension's scale; the first first
  at::Tensor variance;  // of the standardised inputs along each axis, [components], float64

  // x: [n, d] floating point, n ≥ 1; components in [1, d].
  static PrincipalAxes Of(const at::Tensor& x, int64_t components);

  // x: [n, d] floating point → [n, components] float64.
  at::Tensor Scores(const at::Tensor& x) const;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_PRINCIPAL_AXES_H_
