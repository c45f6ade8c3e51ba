#include "server/engine/analysis/logistic_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "server/base/status_macros.h"
#include "server/engine/analysis/nonlinearity.h"

namespace gatehouse {
namespace {

constexpr int kMostSteps = 100;
constexpr int64_t kGateRows = 4096;  // held in float64 at a time

// The objective of the regression at one point and, with its derivatives, the way down.
struct Point {
  double value = 0;
  at::Tensor gradient;  // [d + 1]
  at::Tensor hessian;   // [d + 1, d + 1]
};

// ½‖w‖² + C Σ loss over standardised inputs with a column of ones for the bias.
class Objective {
 public:
  Objective(const at::Tensor& x, const at::Tensor& labels, double c) : x_(x), labels_(labels), c_(c) {
    at::Tensor sum = at::zeros({x.size(1)}, x.options().dtype(at::kDouble)), squares = sum.clone();
    ForRows([&](const at::Tensor& rows, const at::Tensor&) { sum += rows.sum(0); });
    mean_ = sum / x.size(0);
    ForRows([&](const at::Tensor& rows, const at::Tensor&) { squares += (rows - mean_).square().sum(0); });
    const at::Tensor scale = (squares / x.size(0)).sqrt();
    // Rounding leaves a constant column some 1e-16 of its size to vary by.
    scale_ = at::where(scale > mean_.abs() * 1e-12, scale, at::ones({}, scale.options()));
  }

  double Value(const at::Tensor& theta) const {
    const at::Tensor w = theta.narrow(0, 0, x_.size(1));
    double value = 0.5 * at::dot(w, w).item<double>();
    ForRows([&](const at::Tensor& rows, const at::Tensor& labels) {
      const at::Tensor z = at::mv(Design(rows), theta);
      value += c_ * (at::softplus(z, 1, 700) - labels * z).sum().item<double>();
    });
    return value;
  }

  Point Expand(const at::Tensor& theta) const {
    const int64_t d = x_.size(1);
    Point point{0, theta.clone(), at::zeros({d + 1, d + 1}, theta.options())};
    point.gradient[d] = 0;
    point.hessian.diagonal().narrow(0, 0, d) += 1;
    point.hessian[d][d] = 1e-12;  // the bias is not penalised; keeps the factor positive where p saturates
    ForRows([&](const at::Tensor& rows, const at::Tensor& labels) {
      const at::Tensor design = Design(rows);
      const at::Tensor p = at::sigmoid(at::mv(design, theta));
      point.gradient += c_ * at::mv(design.t(), p - labels);
      const at::Tensor weighted = design * (c_ * p * (1 - p)).unsqueeze(1);
      point.hessian.addmm_(weighted.t(), design);
    });
    point.value = Value(theta);
    return point;
  }

  // Weight and bias for inputs as they are, not standardised.
  LogisticGate Fold(const at::Tensor& theta) const {
    const int64_t d = x_.size(1);
    const at::Tensor weight = theta.narrow(0, 0, d) / scale_;
    const at::Tensor bias = theta.narrow(0, d, 1) - at::dot(weight, mean_);
    return {weight.to(at::kFloat), bias.to(at::kFloat)};
  }

 private:
  template <typename Body>
  void ForRows(const Body& body) const {
    for (int64_t at = 0; at < x_.size(0); at += kGateRows) {
      const int64_t n = std::min(kGateRows, x_.size(0) - at);
      body(x_.narrow(0, at, n).to(at::kDouble), labels_.narrow(0, at, n));
    }
  }

  // rows [n, d] → standardised, with ones: [n, d + 1].
  at::Tensor Design(const at::Tensor& rows) const {
    return at::cat({(rows - mean_) / scale_, at::ones({rows.size(0), 1}, rows.options())}, 1);
  }

  const at::Tensor& x_;
  const at::Tensor& labels_;  // [n], float64
  double c_;
  at::Tensor mean_, scale_;  // [d], float64
};

LogisticGate ConstantGate(const at::Tensor& x, double ones, double n) {
  const double odds = std::log((ones + 0.5) / (n - ones + 0.5));
  return {at::zeros({x.size(1)}, x.options()), at::full({1}, odds, x.options())};
}

}  // namespace

at::Tensor LogisticGate::Probability(const at::Tensor& x) const { return at::sigmoid(at::matmul(x, weight) + bias); }

double GateLabelLimit(std::span<const double> delta_ce) {
  std::vector<double> sorted(delta_ce.begin(), delta_ce.end());
  std::sort(sorted.begin(), sorted.end());
  const auto negative = std::lower_bound(sorted.begin(), sorted.end(), 0.0) - sorted.begin();
  const bool few = static_cast<double>(negative) < 0.05 * static_cast<double>(sorted.size());
  return Quantile(sorted, few ? 0.25 : 0.5);
}

std::vector<uint8_t> GateLabels(std::span<const double> delta_ce) {
  const double limit = GateLabelLimit(delta_ce);
  std::vector<uint8_t> labels;
  labels.reserve(delta_ce.size());
  for (const double delta : delta_ce) labels.push_back(delta <= limit);
  return labels;
}

absl::StatusOr<LogisticGate> FitLogisticGate(const at::Tensor& x, std::span<const uint8_t> labels, double c) {
  if (!x.isfinite().all().item<bool>()) return absl::FailedPreconditionError("the inputs of a gate are not finite");
  const auto ones = static_cast<double>(std::count(labels.begin(), labels.end(), uint8_t{1}));
  const auto n = static_cast<double>(labels.size());
  if (ones == 0 || ones == n) return ConstantGate(x, ones, n);

  const at::Tensor target = at::from_blob(const_cast<uint8_t*>(labels.data()), {x.size(0)}, at::kByte)
                                .to(at::TensorOptions(at::kDouble).device(x.device()));
  const Objective objective(x, target, c);
  at::Tensor theta = at::zeros({x.size(1) + 1}, target.options());
  for (int step = 0; step < kMostSteps; ++step) {
    const Point point = objective.Expand(theta);
    const auto [factor, info] = at::linalg_cholesky_ex(point.hessian);
    if (info.item<int>() != 0) return absl::FailedPreconditionError("the logistic regression of a gate broke down");
    const at::Tensor way = at::cholesky_solve(point.gradient.unsqueeze(1), factor).squeeze(1);
    // Half the squared Newton decrement bounds what is left to gain.
    const double slope = at::dot(point.gradient, way).item<double>();
    if (!(slope > 1e-14 * (1 + std::abs(point.value)))) break;
    double length = 1;
    while (length > 1e-6 && objective.Value(theta - length * way) > point.value - 0.25 * length * slope) length /= 2;
    theta = theta - length * way;
  }
  return objective.Fold(theta);
}

}  // namespace gatehouse
