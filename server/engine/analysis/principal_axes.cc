#include "server/engine/analysis/principal_axes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace gatehouse {
namespace {

constexpr int64_t kAxesRows = 4096;  // held in float64 at a time

// Calls `body` with float64 rows of x [n, d].
template <typename Body>
void ForRows(const at::Tensor& x, const Body& body) {
  for (int64_t row = 0; row < x.size(0); row += kAxesRows) {
    body(x.narrow(0, row, std::min(kAxesRows, x.size(0) - row)).to(at::kDouble));
  }
}

}  // namespace

PrincipalAxes PrincipalAxes::Of(const at::Tensor& x, int64_t components) {
  const int64_t d = x.size(1);
  const auto options = x.options().dtype(at::kDouble);
  at::Tensor sum = at::zeros({d}, options), products = at::zeros({d, d}, options);
  ForRows(x, [&](const at::Tensor& rows) { sum += rows.sum(0); });
  const at::Tensor mean = sum / x.size(0);
  ForRows(x, [&](const at::Tensor& rows) {
    const at::Tensor centred = rows - mean;
    products.addmm_(centred.t(), centred);
  });
  const at::Tensor covariance = products / x.size(0);
  const at::Tensor deviation = covariance.diagonal().sqrt();
  // As in the logistic gate: rounding leaves a constant column something to vary by.
  const at::Tensor scale = at::where(deviation > mean.abs() * 1e-12, deviation, at::ones({}, options));
  const auto [values, vectors] = at::linalg_eigh(covariance / scale / scale.unsqueeze(1));  // ascending
  return {mean, vectors.narrow(1, d - components, components).flip(1) / scale.unsqueeze(1),
          values.narrow(0, d - components, components).flip(0)};
}

at::Tensor PrincipalAxes::Scores(const at::Tensor& x) const {
  std::vector<at::Tensor> parts;
  ForRows(x, [&](const at::Tensor& rows) { parts.push_back(at::mm(rows - mean, axes)); });
  return at::cat(parts);
}

}  // namespace gatehouse
