#include "server/engine/analysis/split_stream.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "server/base/status_macros.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

constexpr int64_t kBatchTokens = 2048;

}  // namespace

SplitStream::SplitStream(const ModelWeights& model, std::span<const int32_t> tokens, std::span<const int64_t> blocks,
                         int window)
    : model_(model) {
  ids_ = at::empty({static_cast<int64_t>(blocks.size()), window}, at::kLong);
  int64_t* ids = ids_.mutable_data_ptr<int64_t>();
  for (const int64_t block : blocks) {
    ids = std::copy_n(tokens.begin() + block * window, window, ids);
  }
  const at::Device device = model.token_embedding.device();
  ids_ = ids_.to(device);
  const auto options = at::TensorOptions(at::kFloat).device(device);
  residual_ = PlainEmbed(model, ids_);
  x_ = at::empty_like(residual_);
  full_ce_ = at::empty({this->blocks(), window - 1}, options.dtype(at::kDouble));
}

absl::Status SplitStream::ForBatches(const std::function<absl::Status(int64_t, int64_t)>& body) const {
  const int64_t batch = std::max<int64_t>(1, kBatchTokens / window());
  for (int64_t first = 0; first < blocks(); first += batch) {
    GH_RETURN_IF_ERROR(body(first, std::min(batch, blocks() - first)));
  }
  return absl::OkStatus();
}

absl::Status SplitStream::MeasureFull(Work& work) {
  GH_ASSIGN_OR_RETURN(full_ce_, CrossEntropyThrough(nullptr, work));
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> SplitStream::CrossEntropyThrough(const MlpFn& mlp, Work& work) const {
  at::Tensor result = at::empty_like(full_ce_);
  GH_RETURN_IF_ERROR(ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * window() * (model_.config.layers + 1))));
    const at::Tensor ids = ids_.narrow(0, first, count);
    const at::Tensor last = PlainLayers(model_, PlainEmbed(model_, ids), 0, model_.config.layers, mlp);
    result.narrow(0, first, count).copy_(PlainCrossEntropy(model_, last, ids));
    return absl::OkStatus();
  }));
  return result;
}

void SplitStream::Restart() {
  residual_ = PlainEmbed(model_, ids_);
  y_.reset();
  layer_ = -1;
}

absl::Status SplitStream::Enter(int layer, Work& work) {
  layer_ = layer;
  return ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * window())));
    const BeforeMlp before = PlainBeforeMlp(model_, residual_.narrow(0, first, count), layer);
    residual_.narrow(0, first, count).copy_(before.residual);
    x_.narrow(0, first, count).copy_(before.x);
    return absl::OkStatus();
  });
}

absl::Status SplitStream::KeepOutputs(Work& work) {
  at::Tensor outputs = at::empty_like(x_);
  GH_RETURN_IF_ERROR(ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * window())));
    outputs.narrow(0, first, count).copy_(PlainMlp(model_, layer_, x_.narrow(0, first, count)));
    return absl::OkStatus();
  }));
  y_ = outputs;
  return absl::OkStatus();
}

absl::Status SplitStream::Leave(Work& work) {
  if (y_.defined()) {
    residual_ += y_;
    y_.reset();
    return work.Step(0);
  }
  return Leave([&](const at::Tensor& x) { return PlainMlp(model_, layer_, x); }, work);
}

absl::Status SplitStream::Leave(const WriteFn& write, Work& work) {
  y_.reset();
  return ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * window())));
    residual_.narrow(0, first, count) += write(x_.narrow(0, first, count));
    return absl::OkStatus();
  });
}

absl::Status SplitStream::ForLastWith(const WriteFn& write, Work& work, const LastFn& take) const {
  const int layers = model_.config.layers;
  return ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * window() * (layers - layer_))));
    const at::Tensor residual = residual_.narrow(0, first, count) + write(x_.narrow(0, first, count));
    take(first, PlainLayers(model_, residual, layer_ + 1, layers));
    return absl::OkStatus();
  });
}

absl::StatusOr<at::Tensor> SplitStream::CrossEntropyWith(const WriteFn& write, Work& work) const {
  at::Tensor result = at::empty_like(full_ce_);
  GH_RETURN_IF_ERROR(ForLastWith(write, work, [&](int64_t first, const at::Tensor& last) {
    const int64_t count = last.size(0);
    result.narrow(0, first, count).copy_(PlainCrossEntropy(model_, last, ids_.narrow(0, first, count)));
  }));
  return result;
}

}  // namespace gatehouse
