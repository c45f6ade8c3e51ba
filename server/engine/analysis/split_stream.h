#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_SPLIT_STREAM_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_SPLIT_STREAM_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/analysis/work.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {

// Some blocks of a corpus on their way through a model, layer by layer, so that replacing
// one layer's MLP costs only the layers after it.  It holds two tensors of the residual
// stream's size for its blocks, three where outputs are kept.  `model` must outlive it; used by one thread.
class SplitStream {
 public:
  // What an MLP writes for a batch of blocks.  x: [blocks, window, d_model] float32; the
  // same shape back.
  using WriteFn = std::function<at::Tensor(const at::Tensor& x)>;

  // Block i of `blocks` is tokens[i · window, (i + 1) · window).
  SplitStream(const ModelWeights& model, std::span<const int32_t> tokens, std::span<const int64_t> blocks, int window);

  int64_t blocks() const { return ids_.size(0); }
  int64_t window() const { return ids_.size(1); }
  int64_t tokens() const { return blocks() * window(); }

  // Runs the full model and keeps its cross-entropies.
  absl::Status MeasureFull(Work& work);
  // [blocks, window − 1] float64.
  const at::Tensor& full_cross_entropy() const { return full_ce_; }

  // The cross-entropy of the model with all its MLPs through `mlp`: [blocks, window − 1]
  // float64.
  absl::StatusOr<at::Tensor> CrossEntropyThrough(const MlpFn& mlp, Work& work) const;

  // [blocks, window] int64.
  const at::Tensor& ids() const { return ids_; }

  // What the next layer reads; while a layer is entered, what its MLP's output is added to.
  // [blocks, window, d_model] float32.
  const at::Tensor& residual() const { return residual_; }

  // Back to the residual stream before layer 0.
  void Restart();

  // Runs `layer` up to its MLP: x() is then what the MLP reads.  Layers are entered in
  // order, each left before the next.
  absl::Status Enter(int layer, Work& work);
  // Computes what the entered layer's own MLP writes and keeps it until the layer is left, for
  // a study that reads it more than once: a third tensor.
  absl::Status KeepOutputs(Work& work);
  // [blocks, window, d_model] float32; undefined where it is not kept.
  const at::Tensor& y() const { return y_; }
  const ModelWeights& model() const { return model_; }
  // Adds what the layer's MLP writes.
  absl::Status Leave(Work& work);
  // Adds what `write` writes in its place.
  absl::Status Leave(const WriteFn& write, Work& work);

  // REQUIRES: a layer is entered.  [blocks, window, d_model] float32.
  const at::Tensor& x() const { return x_; }

  // Calls `take` with what leaves the last layer where the entered layer's MLP is replaced and
  // everything after it is as it is, batch by batch: `last` [count, window, d_model] float32, of
  // the blocks from `first` on.
  using LastFn = std::function<void(int64_t first, const at::Tensor& last)>;
  absl::Status ForLastWith(const WriteFn& write, Work& work, const LastFn& take) const;
  // The cross-entropy of the same: [blocks, window − 1] float64.
  absl::StatusOr<at::Tensor> CrossEntropyWith(const WriteFn& write, Work& work) const;

  // Calls `body` with ranges of blocks [first, first + count), each a batch's worth.
  absl::Status ForBatches(const std::function<absl::Status(int64_t first, int64_t count)>& body) const;

 private:
  const ModelWeights& model_;
  at::Tensor ids_;       // [blocks, window] int64
  at::Tensor residual_;  // [blocks, window, d_model] float32; without the entered layer's MLP
  at::Tensor x_;
  at::Tensor y_;
  at::Tensor full_ce_;
  int layer_ = -1;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_SPLIT_STREAM_H_
