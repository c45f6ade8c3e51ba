#include "server/engine/analysis/surrogate_fit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "server/base/strings.h"
#include "server/engine/model/library_product.h"

namespace gatehouse {

at::Tensor Surrogate::Predict(const at::Tensor& x) const { return LibraryProduct(x, {weight, bias}); }

RidgeSums::RidgeSums(int64_t d_in, int64_t d_out, at::Device device) {
  const auto options = at::TensorOptions(at::kDouble).device(device);
  x_ = at::zeros({d_in}, options);
  y_ = at::zeros({d_out}, options);
  xx_ = at::zeros({d_in, d_in}, options);
  xy_ = at::zeros({d_in, d_out}, options);
}

void RidgeSums::Add(const at::Tensor& x, const at::Tensor& y) {
  if (x.size(0) == 0) return;
  const at::Tensor x64 = x.to(at::kDouble), y64 = y.to(at::kDouble);
  const at::Tensor xt = x64.t();
  x_ += x64.sum(0);
  y_ += y64.sum(0);
  xx_.addmm_(xt, x64);
  xy_.addmm_(xt, y64);
  tokens_ += x.size(0);
}

void RidgeSums::Add(const RidgeSums& other) {
  x_ += other.x_;
  y_ += other.y_;
  xx_ += other.xx_;
  xy_ += other.xy_;
  tokens_ += other.tokens_;
}

absl::StatusOr<Surrogate> RidgeSums::Solve(double lambda) const {
  if (tokens_ == 0) return absl::FailedPreconditionError("no tokens to fit a surrogate on");
  const at::Tensor x_mean = (x_ / tokens_).cpu(), y_mean = (y_ / tokens_).cpu();
  const at::Tensor xx = xx_.cpu() - at::outer(x_mean, x_mean) * tokens_;
  const at::Tensor xy = xy_.cpu() - at::outer(x_mean, y_mean) * tokens_;
  const at::Tensor ridge = at::eye(xx.size(0), xx.options()) * lambda;
  const auto [factor, info] = at::linalg_cholesky_ex(xx + ridge);
  if (info.item<int>() != 0 || !xy.isfinite().all().item<bool>()) {
    return absl::FailedPreconditionError(
        StrCat("no surrogate can be fitted on ", tokens_, " tokens: their products are not finite or not positive"));
  }
  const at::Tensor weight = at::cholesky_solve(xy, factor).t();  // [d_out, d_in]
  const at::Tensor bias = y_mean - at::mv(weight, x_mean);
  const at::Device device = xx_.device();
  return Surrogate{weight.to(at::kFloat).contiguous().to(device), bias.to(at::kFloat).to(device), y_mean.to(device)};
}

void R2Sums::Add(const at::Tensor& y, const at::Tensor& predicted, const at::Tensor& fit_mean) {
  if (y.size(0) == 0) return;
  const at::Tensor y64 = y.to(at::kDouble);
  residual_ += (y64 - predicted).square().sum().item<double>();
  total_ += (y64 - fit_mean).square().sum().item<double>();
}

double R2Sums::Value() const {
  if (total_ == 0) return residual_ == 0 ? 1 : 0;
  return 1 - residual_ / total_;
}

}  // namespace gatehouse
