#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_PLAIN_FORWARD_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_PLAIN_FORWARD_H_

#include <ATen/core/Tensor.h>

#include <functional>

#include "server/engine/model/weights.h"

namespace gatehouse {

// The plain, differentiable path: whole sequences through the same weights with
// LibTorch's own operators, no cache and no kernel of ours.  It is the oracle of the
// tests, what calibration observes, and what training will use.
//
// Exceptions of LibTorch pass through; callers convert them (see torch_boundary.h).
// Thread-safe: the weights are only read.

// Takes the place of a layer's MLP.  `x` is what the MLP reads, [batch, tokens,
// d_model] float32; returns what it writes, the same shape.
using MlpFn = std::function<at::Tensor(int layer, const at::Tensor& x)>;

// The layer's own MLP.  x: [..., d_model] float32 → [..., d_model] float32.  Where
// `activations` is not null it receives what the down projection reads before a gated
// product: act(x W_in) for a plain MLP, act(gate) for a gated one, [..., d_mlp].
at::Tensor PlainMlp(const ModelWeights& model, int layer, const at::Tensor& x, at::Tensor* activations = nullptr);

// What the layer's down projection reads, act(x W_in) or act(gate) · up: [..., d_model]
// float32 → [..., d_mlp] float32.  `activations` as above.
at::Tensor PlainNeurons(const ModelWeights& model, int layer, const at::Tensor& x, at::Tensor* activations = nullptr);

// What the MLP writes: neurons [..., d_mlp] float32, as PlainNeurons gives them → [..., d_model]
// float32.
at::Tensor PlainDown(const ModelWeights& model, int layer, const at::Tensor& neurons);

// What some neurons write, without the output's bias.  rows: [m] int64, which.
at::Tensor PlainNeuronsWrite(const ModelWeights& model, int layer, const at::Tensor& neurons, const at::Tensor& rows);

// Residual stream before layer 0.  ids: [batch, tokens] int64 → [batch, tokens,
// d_model] float32.
at::Tensor PlainEmbed(const ModelWeights& model, const at::Tensor& ids);

// A layer up to its MLP, on a residual stream [batch, tokens, d_model] float32.
struct BeforeMlp {
  at::Tensor residual;  // what the MLP's output is added to
  at::Tensor x;         // what the MLP reads
};
BeforeMlp PlainBeforeMlp(const ModelWeights& model, const at::Tensor& residual, int layer);

// Layers [first, last) on a residual stream [batch, tokens, d_model] float32; each
// MLP through `mlp` where given.
at::Tensor PlainLayers(const ModelWeights& model, at::Tensor residual, int first, int last, const MlpFn& mlp = nullptr);

// Rows whose logits, of the vocabulary's width, the methods hold at a time.
inline constexpr int64_t kPlainLogitRows = 256;

// Final norm and output projection: [..., d_model] → logits [..., vocab] float32.
at::Tensor PlainLogits(const ModelWeights& model, const at::Tensor& residual);

// All of it: ids [batch, tokens] int64 → logits [batch, tokens, vocab] float32.
at::Tensor PlainForward(const ModelWeights& model, const at::Tensor& ids, const MlpFn& mlp = nullptr);

// Next-token cross-entropy in nats at positions 0..tokens−2 of each sequence, from the
// residual stream after the last layer; the vocabulary is projected in slices of rows.
// residual [batch, tokens, d_model], ids [batch, tokens] int64 → [batch, tokens − 1]
// float32.
at::Tensor PlainCrossEntropy(const ModelWeights& model, const at::Tensor& residual, const at::Tensor& ids);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_PLAIN_FORWARD_H_
