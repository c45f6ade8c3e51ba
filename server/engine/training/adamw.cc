#include "server/engine/training/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace gatehouse {
namespace {

bool Learns(const Parameter& parameter) { return parameter.value.requires_grad() && parameter.value.grad().defined(); }

}  // namespace

void AdamW::Step(std::span<const Parameter> parameters, double learning_rate, double gate_learning_rate) {
  const c10::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters) {
    if (!Learns(parameter)) continue;
    const at::Tensor& value = parameter.value;
    const at::Tensor gradient = value.grad();
    Moments& moments = moments_[parameter.name];
    if (moments.steps == 0) {
      moments.first = at::zeros_like(value);
      moments.second = at::zeros_like(value);
    }
    ++moments.steps;
    const double rate = parameter.kind == ParameterKind::kGate ? gate_learning_rate : learning_rate;
    const double t = static_cast<double>(moments.steps);
    if (parameter.kind == ParameterKind::kMatrix) value.mul_(1 - rate * options_.weight_decay);
    moments.first.lerp_(gradient, 1 - options_.beta1);
    moments.second.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
    const double correction1 = 1 - std::pow(options_.beta1, t), correction2 = 1 - std::pow(options_.beta2, t);
    const at::Tensor scale = moments.second.sqrt().div_(std::sqrt(correction2)).add_(options_.epsilon);
    value.addcdiv_(moments.first, scale, -rate / correction1);
  }
}

double ClipGradients(std::span<const Parameter> parameters, double limit) {
  const c10::NoGradGuard no_grad;
  double squares = 0;
  for (const Parameter& parameter : parameters) {
    if (!Learns(parameter)) continue;
    const double norm = at::linalg_vector_norm(parameter.value.grad()).item<double>();
    squares += norm * norm;
  }
  const double norm = std::sqrt(squares), scale = limit / (norm + 1e-6);
  if (scale < 1) {
    for (const Parameter& parameter : parameters) {
      if (Learns(parameter)) parameter.value.grad().mul_(scale);
    }
  }
  return norm;
}

void ClearGradients(std::span<const Parameter> parameters) {
  for (const Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
}

}  // namespace gatehouse
