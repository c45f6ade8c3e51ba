#include "server/engine/training/trainable_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

// A float32 copy that shares nothing with `value`.
at::Tensor Copy(const at::Tensor& value) {
  return value.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

at::Tensor Apply(const LinearWeights& linear, const at::Tensor& x) { return at::linear(x, linear.weight, linear.bias); }

}  // namespace

TrainableModel::TrainableModel(const ModelWeights& model, int sinks)
    : weights_(model), layers_(model.layers.size()), sinks_(sinks) {
  Add("token_embedding", weights_.token_embedding, ParameterKind::kMatrix);
  if (model.position_embedding.defined()) {
    Add("position_embedding", weights_.position_embedding, ParameterKind::kMatrix);
  }
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    LayerWeights& layer = weights_.layers[i];
    const std::string at = StrCat("layers.", i, ".");
    AddNorm(at + "attention_norm", layer.attention_norm);
    AddNorm(at + "mlp_norm", layer.mlp_norm);
    AddLinear(at + "qkv", layer.qkv, ParameterKind::kMatrix);
    AddLinear(at + "attention_out", layer.attention_out, ParameterKind::kMatrix);
    AddLinear(at + "mlp_in", layer.mlp_in, ParameterKind::kMatrix);
    AddLinear(at + "mlp_out", layer.mlp_out, ParameterKind::kMatrix);
  }
  AddNorm("final_norm", weights_.final_norm);
  if (model.output.weight.is_same(model.token_embedding)) {
    weights_.output.weight = weights_.token_embedding;
  } else {
    AddLinear("output", weights_.output, ParameterKind::kMatrix);
  }
}

void TrainableModel::Add(const std::string& name, at::Tensor& value, ParameterKind kind) {
  value = Copy(value).set_requires_grad(true);
  parameters_.push_back({name, value, kind});
}

void TrainableModel::AddLinear(const std::string& name, LinearWeights& linear, ParameterKind kind) {
  const bool gate = kind == ParameterKind::kGate;
  Add(name + ".weight", linear.weight, kind);
  if (linear.bias.defined()) Add(name + ".bias", linear.bias, gate ? kind : ParameterKind::kVector);
}

void TrainableModel::AddNorm(const std::string& name, NormWeights& norm) {
  Add(name + ".weight", norm.weight, ParameterKind::kVector);
  if (norm.bias.defined()) Add(name + ".bias", norm.bias, ParameterKind::kVector);
}

void TrainableModel::SetSurrogate(int layer, const Surrogate& surrogate) {
  layers_[layer].surrogate = {surrogate.weight, surrogate.bias};
  AddLinear(StrCat("layers.", layer, ".surrogate"), layers_[layer].surrogate, ParameterKind::kMatrix);
}

void TrainableModel::Linearize(int layer, const Surrogate& surrogate) {
  SetSurrogate(layer, surrogate);
  layers_[layer].mode = Mode::kLinear;
  for (LinearWeights* linear : {&weights_.layers[layer].mlp_in, &weights_.layers[layer].mlp_out}) {
    linear->weight.set_requires_grad(false);
    if (linear->bias.defined()) linear->bias.set_requires_grad(false);
  }
}

void TrainableModel::AddGate(int layer, const Surrogate* surrogate, double p) {
  if (surrogate != nullptr) SetSurrogate(layer, *surrogate);
  Layer& at = layers_[layer];
  at.mode = Mode::kGated;
  const at::TensorOptions options = weights_.token_embedding.options();
  at.gate = {at::zeros({1, weights_.config.d_model}, options), at::full({1}, std::log(p / (1 - p)), options)};
  AddLinear(StrCat("layers.", layer, ".gate"), at.gate, ParameterKind::kGate);
}

void TrainableModel::FreezeAllButGates() {
  for (Parameter& parameter : parameters_) parameter.value.set_requires_grad(parameter.kind == ParameterKind::kGate);
}

int TrainableModel::gated_layers() const {
  return static_cast<int>(
      std::count_if(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.mode == Mode::kGated; }));
}

at::Tensor TrainableModel::WithSinksInFull(int layer, const at::Tensor& x, const at::Tensor& written) const {
  if (sinks_ == 0) return written;
  const int64_t rest = x.size(1) - sinks_;
  return at::cat({PlainMlp(weights_, layer, x.narrow(1, 0, sinks_)), written.narrow(1, sinks_, rest)}, 1);
}

at::Tensor TrainableModel::GatedMlp(int layer, const at::Tensor& x, Decision decision, Result* result) const {
  const int64_t rest = x.size(1) - sinks_;
  const at::Tensor tokens = x.narrow(1, sinks_, rest);
  const at::Tensor p = at::sigmoid(Apply(layers_[layer].gate, tokens));  // [batch, rest, 1]
  const at::Tensor linear = p > 0.5;
  if (result != nullptr) {
    const at::Tensor mass = (1 - p).sum();
    result->full_mass = result->full_mass.defined() ? result->full_mass + mass : mass;
    if (decision == Decision::kHard) result->linear_tokens[layer] += linear.sum().item<int64_t>();
  }
  const at::Tensor surrogate = Apply(layers_[layer].surrogate, tokens), full = PlainMlp(weights_, layer, x);
  const at::Tensor own = full.narrow(1, sinks_, rest);
  at::Tensor written;
  if (decision == Decision::kHard) {
    written = at::where(linear, surrogate, own);
  } else {
    const at::Tensor share = decision == Decision::kSoft ? p : p + (linear.to(at::kFloat) - p).detach();
    written = own + share * (surrogate - own);
  }
  return sinks_ == 0 ? written : at::cat({full.narrow(1, 0, sinks_), written}, 1);
}

at::Tensor TrainableModel::Mlp(int layer, const at::Tensor& x, Decision decision, Result* result) const {
  switch (layers_[layer].mode) {
    case Mode::kFull:
      return PlainMlp(weights_, layer, x);
    case Mode::kLinear:
      if (result != nullptr && decision == Decision::kHard) {
        result->linear_tokens[layer] += x.size(0) * (x.size(1) - sinks_);
      }
      return WithSinksInFull(layer, x, Apply(layers_[layer].surrogate, x));
    case Mode::kGated:
      return GatedMlp(layer, x, decision, result);
  }
  return x;
}

TrainableModel::Result TrainableModel::Run(const at::Tensor& ids, Decision decision) const {
  Result result;
  result.linear_tokens.assign(layers_.size(), 0);
  const MlpFn mlp = [&](int layer, const at::Tensor& x) { return Mlp(layer, x, decision, &result); };
  const at::Tensor residual = PlainLayers(weights_, PlainEmbed(weights_, ids), 0, weights_.config.layers, mlp);
  result.cross_entropy = PlainCrossEntropy(weights_, residual, ids);
  return result;
}

MlpFn TrainableModel::HardMlp() const {
  return [this](int layer, const at::Tensor& x) { return Mlp(layer, x, Decision::kHard, nullptr); };
}

}  // namespace gatehouse
