#include "server/engine/training/plain_forward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/engine/model/library_product.h"

namespace gatehouse {
namespace {

// x: [..., in] float32 → [..., out] float32, the product in the weight's dtype.
at::Tensor Linear(const LinearWeights& linear, const at::Tensor& x) {
  const at::ScalarType dtype = linear.weight.scalar_type();
  if (dtype == at::kFloat) return LibraryProduct(x, linear);
  const at::Tensor y = at::linear(x.to(dtype), linear.weight).to(at::kFloat);
  return linear.bias.defined() ? y + linear.bias : y;
}

// x: [..., d_model] float32 → the same shape.
at::Tensor Norm(const ModelConfig& config, const NormWeights& norm, const at::Tensor& x) {
  if (config.norm == NormKind::kLayerNorm) {
    return at::layer_norm(x, {config.d_model}, norm.weight, norm.bias, config.norm_eps);
  }
  return norm.weight * (x * at::rsqrt((x * x).mean(-1, /*keepdim=*/true) + config.norm_eps));
}

at::Tensor Activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kGeluErf:
      return at::gelu(x);
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSilu:
      return at::silu(x);
  }
  return x;
}

// Turns the pairs (i, i + rotary_dims / 2) of x: [batch, heads, tokens, head_dim] float32.
at::Tensor Rotate(const ModelConfig& config, const at::Tensor& x) {
  if (config.rotary_dims == 0) return x;
  const int64_t half = config.rotary_dims / 2;
  const at::Tensor inv_freq = at::from_blob(const_cast<float*>(config.inv_freq.data()), {half}, at::kFloat);
  const at::Tensor positions = at::arange(x.size(2), x.options());
  const at::Tensor angles = at::outer(positions, inv_freq.to(x.device()));  // [tokens, half]
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const at::Tensor rest = x.narrow(-1, config.rotary_dims, config.head_dim - config.rotary_dims);
  return at::cat({first * cos - second * sin, second * cos + first * sin, rest}, -1);
}

// Key or value heads repeated so that each query head has its own.
// [batch, kv_heads, tokens, head_dim] → [batch, heads, tokens, head_dim]
at::Tensor ForEachQueryHead(const ModelConfig& config, const at::Tensor& x) {
  if (config.kv_heads == config.heads) return x;
  return x.repeat_interleave(config.heads / config.kv_heads, 1);
}

// What the attention of a layer writes.  x: [batch, tokens, d_model] float32, already
// normed → the same shape.
at::Tensor Attention(const ModelWeights& model, int layer, const at::Tensor& x) {
  const ModelConfig& config = model.config;
  const LayerWeights& weights = model.layers[layer];
  const int64_t batch = x.size(0), tokens = x.size(1);
  const at::Tensor heads =
      Linear(weights.qkv, x).view({batch, tokens, config.heads + 2 * config.kv_heads, config.head_dim}).transpose(1, 2);
  const at::Tensor q = Rotate(config, heads.narrow(1, 0, config.heads));
  const at::Tensor k = Rotate(config, heads.narrow(1, config.heads, config.kv_heads));
  const at::Tensor v = heads.narrow(1, config.heads + config.kv_heads, config.kv_heads);
  const at::Tensor mixed = at::scaled_dot_product_attention(q, ForEachQueryHead(config, k), ForEachQueryHead(config, v),
                                                            /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0,
                                                            /*is_causal=*/true, config.AttentionScale(layer));
  return Linear(weights.attention_out, mixed.transpose(1, 2).reshape({batch, tokens, -1}));
}

}  // namespace

at::Tensor PlainNeurons(const ModelWeights& model, int layer, const at::Tensor& x, at::Tensor* activations) {
  const ModelConfig& config = model.config;
  const at::Tensor in = Linear(model.layers[layer].mlp_in, x);
  const at::Tensor active =
      Activate(config.activation, config.gated_mlp ? in.narrow(-1, 0, config.d_mlp) : in);  // [..., d_mlp]
  if (activations != nullptr) *activations = active;
  return config.gated_mlp ? active * in.narrow(-1, config.d_mlp, config.d_mlp) : active;
}

at::Tensor PlainDown(const ModelWeights& model, int layer, const at::Tensor& neurons) {
  return Linear(model.layers[layer].mlp_out, neurons);
}

at::Tensor PlainNeuronsWrite(const ModelWeights& model, int layer, const at::Tensor& neurons, const at::Tensor& rows) {
  const at::Tensor& weight = model.layers[layer].mlp_out.weight;
  return Linear({weight.index_select(1, rows), {}}, neurons.index_select(-1, rows));
}

at::Tensor PlainMlp(const ModelWeights& model, int layer, const at::Tensor& x, at::Tensor* activations) {
  return PlainDown(model, layer, PlainNeurons(model, layer, x, activations));
}

at::Tensor PlainEmbed(const ModelWeights& model, const at::Tensor& ids) {
  const at::Tensor tokens = at::embedding(model.token_embedding, ids).to(at::kFloat);
  if (!model.position_embedding.defined()) return tokens;
  const at::Tensor positions = at::arange(ids.size(-1), ids.options());
  return tokens + at::embedding(model.position_embedding, positions).to(at::kFloat);
}

BeforeMlp PlainBeforeMlp(const ModelWeights& model, const at::Tensor& residual, int layer) {
  const ModelConfig& config = model.config;
  const LayerWeights& weights = model.layers[layer];
  const at::Tensor attended = residual + Attention(model, layer, Norm(config, weights.attention_norm, residual));
  return {attended, Norm(config, weights.mlp_norm, config.parallel_residual ? residual : attended)};
}

at::Tensor PlainLayers(const ModelWeights& model, at::Tensor residual, int first, int last, const MlpFn& mlp) {
  for (int layer = first; layer < last; ++layer) {
    const BeforeMlp before = PlainBeforeMlp(model, residual, layer);
    residual = before.residual + (mlp ? mlp(layer, before.x) : PlainMlp(model, layer, before.x));
  }
  return residual;
}

at::Tensor PlainLogits(const ModelWeights& model, const at::Tensor& residual) {
  return Linear(model.output, Norm(model.config, model.final_norm, residual));
}

at::Tensor PlainForward(const ModelWeights& model, const at::Tensor& ids, const MlpFn& mlp) {
  return PlainLogits(model, PlainLayers(model, PlainEmbed(model, ids), 0, model.config.layers, mlp));
}

at::Tensor PlainCrossEntropy(const ModelWeights& model, const at::Tensor& residual, const at::Tensor& ids) {
  const int64_t batch = ids.size(0), predictions = ids.size(1) - 1;
  const at::Tensor rows = residual.narrow(1, 0, predictions).reshape({batch * predictions, residual.size(2)});
  const at::Tensor targets = ids.narrow(1, 1, predictions).reshape({-1, 1});
  std::vector<at::Tensor> parts;
  for (int64_t start = 0; start < rows.size(0); start += kPlainLogitRows) {
    const int64_t count = std::min(kPlainLogitRows, rows.size(0) - start);
    const at::Tensor log_probs = PlainLogits(model, rows.narrow(0, start, count)).log_softmax(-1);
    parts.push_back(-log_probs.gather(-1, targets.narrow(0, start, count)).squeeze(-1));
  }
  if (parts.empty()) return residual.new_empty({batch, predictions});
  return at::cat(parts).view({batch, predictions});
}

}  // namespace gatehouse
