#include "server/engine/training/gated_forward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/sigmoid.h>

#include <functional>

namespace gatehouse {
namespace {

bool Never(float threshold) { return threshold >= 1; }
bool Always(float threshold) { return threshold < 0; }

// Which tokens exceed the threshold.  x: [batch, tokens, d_model]; p: [batch, tokens],
// undefined where the gate is not asked → [batch, tokens] bool.
at::Tensor Exceeds(const at::Tensor& x, const at::Tensor& p, float threshold) {
  if (Never(threshold) || Always(threshold)) {
    return at::full({x.size(0), x.size(1)}, Always(threshold), x.options().dtype(at::kBool));
  }
  return p > threshold;
}

}  // namespace

std::vector<at::Tensor*> CheapPaths::Tensors() {
  std::vector<at::Tensor*> tensors;
  for (at::Tensor* tensor : {&surrogate_weight, &surrogate_bias, &gate_weight, &gate_bias, &ladder_weight, &ladder_bias,
                             &ladder_neurons, &ladder_gap}) {
    if (tensor->defined()) tensors.push_back(tensor);
  }
  return tensors;
}

at::Tensor SurrogateWrites(const CheapPaths& paths, const at::Tensor& x) {
  return at::linear(x, paths.surrogate_weight, paths.surrogate_bias);
}

at::Tensor LadderWrites(const ModelWeights& model, int layer, const CheapPaths& paths, const at::Tensor& x,
                        const at::Tensor& neurons) {
  return at::linear(x, paths.ladder_weight, paths.ladder_bias) +
         PlainNeuronsWrite(model, layer, neurons, paths.ladder_neurons);
}

at::Tensor GateLogits(const CheapPaths& paths, const at::Tensor& x) {
  return at::matmul(x, paths.gate_weight) + paths.gate_bias;
}

ModelInfo WorkShape(const ModelConfig& config) {
  ModelInfo shape;
  shape.layers = config.layers;
  shape.d_model = config.d_model;
  shape.d_mlp = config.d_mlp;
  shape.gated_mlp = config.gated_mlp;
  return shape;
}

GatedMlps::GatedMlps(const ModelWeights& model, const std::vector<CheapPaths>& paths,
                     const std::vector<OperatingLayer>& point, int sinks)
    : model_(model), paths_(paths), point_(point), sinks_(sinks), traffic_(point.size()) {
  for (size_t layer = 0; layer < point.size(); ++layer) {
    if (paths[layer].ladder_neurons.defined()) {
      traffic_[layer].ladder_neurons = static_cast<int>(paths[layer].ladder_neurons.numel());
    }
  }
}

at::Tensor GatedMlps::Write(int layer, const at::Tensor& x) {
  const CheapPaths& paths = paths_[layer];
  const auto [linear_threshold, ladder_threshold] = point_[layer];
  const bool never = Never(linear_threshold) && Never(ladder_threshold);
  const bool asked = !Always(linear_threshold) && !never && !(Never(linear_threshold) && Always(ladder_threshold));
  at::Tensor p;
  if (asked) p = at::sigmoid(GateLogits(paths, x));
  at::Tensor linear = Exceeds(x, p, linear_threshold);
  at::Tensor ladder = Exceeds(x, p, ladder_threshold).logical_and(linear.logical_not());
  const int64_t sinks = std::min<int64_t>(sinks_, x.size(1));
  linear.narrow(1, 0, sinks).fill_(false);
  ladder.narrow(1, 0, sinks).fill_(false);

  const at::Tensor rows = x.flatten(0, 1);
  at::Tensor written = at::empty_like(rows);
  const auto take = [&](const at::Tensor& mask, const std::function<at::Tensor(const at::Tensor&)>& path) {
    const at::Tensor index = at::nonzero(mask.flatten()).squeeze(1);
    if (index.numel() > 0) written.index_copy_(0, index, path(rows.index_select(0, index)));
    return index.numel();
  };
  LayerTraffic& traffic = traffic_[layer];
  traffic.linear += take(linear, [&](const at::Tensor& part) { return SurrogateWrites(paths, part); });
  traffic.ladder += take(ladder, [&](const at::Tensor& part) {
    return LadderWrites(model_, layer, paths, part, PlainNeurons(model_, layer, part));
  });
  traffic.full += take(linear.logical_or(ladder).logical_not(),
                       [&](const at::Tensor& part) { return PlainMlp(model_, layer, part); });
  if (asked) traffic.gated += x.size(0) * (x.size(1) - sinks);
  return written.view_as(x);
}

}  // namespace gatehouse
