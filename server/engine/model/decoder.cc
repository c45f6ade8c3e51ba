#include "server/engine/model/decoder.h"

#include <algorithm>

#include "server/engine/gating/interventions.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

bool AllCancelled(const StepGroup& group) {
  return std::all_of(group.rows.begin(), group.rows.end(), [](const PlannedRow& row) { return row.cancelled(); });
}

// A row that failed answers with its status alone.
void Fail(const PlannedRow& row, const absl::Status& status) {
  *row.result = RowResult();
  row.result->status = status;
}

std::vector<Segment> Segments(const StepGroup& group) {
  std::vector<Segment> segments;
  for (const PlannedRow& row : group.rows) {
    segments.push_back(
        {.first_row = row.first_row, .rows = row.rows, .first_position = row.first_position, .pages = row.pages});
  }
  return segments;
}

}  // namespace

Decoder::Decoder(const ModelWeights& model, Kernels& kernels, KvCache& cache)
    : model_(model), kernels_(kernels), cache_(cache), mlp_(model, kernels), head_(model, kernels) {}

std::vector<RowResult> Decoder::Step(std::span<const Row> rows) {
  std::vector<RowResult> results(rows.size());
  for (const StepGroup& group : PlanStep(rows, model_, cache_, results)) {
    const absl::Status ran = AtTorchBoundary([&] {
      RunGroup(group);
      return absl::OkStatus();
    });
    for (const PlannedRow& row : group.rows) {
      absl::Status status = row.result->status.ok() ? ran : row.result->status;
      if (row.cancelled()) status = absl::CancelledError("the row was cancelled");
      if (status.ok()) {
        cache_.SetLength(row.row->sequence, row.first_position + row.rows);
      } else {
        Fail(row, status);
      }
    }
  }
  return results;
}

void Decoder::RunGroup(const StepGroup& group) {
  const std::vector<Segment> segments = Segments(group);
  at::Tensor residual = Embed(group);
  for (int layer = 0; layer < model_.config.layers; ++layer) {
    if (AllCancelled(group)) return;
    RunLayer(layer, group, segments, residual);
  }
  head_.Run(residual, group);
}

at::Tensor Decoder::Embed(const StepGroup& group) {
  std::vector<int32_t> ids, positions;
  ids.reserve(group.total_rows);
  positions.reserve(group.total_rows);
  for (const PlannedRow& row : group.rows) {
    ids.insert(ids.end(), row.row->tokens.begin(), row.row->tokens.end());
    for (int i = 0; i < row.rows; ++i) positions.push_back(row.first_position + i);
  }
  at::Tensor residual = kernels_.Embed(model_.token_embedding, ids);
  if (model_.position_embedding.defined()) residual.add_(kernels_.Embed(model_.position_embedding, positions));
  return residual;
}

void Decoder::RunLayer(int layer, const StepGroup& group, std::span<const Segment> segments, at::Tensor& residual) {
  const ModelConfig& config = model_.config;
  const LayerWeights& weights = model_.layers[layer];
  const auto pass = [&](ActivationSite site, at::Tensor& activations) {
    if (group.intervenes) PassSite(layer, site, group, activations);
  };
  pass(ActivationSite::kResidualPre, residual);
  at::Tensor qkv = kernels_.Linear(kernels_.Norm(residual, weights.attention_norm, config.norm, config.norm_eps),
                                   weights.qkv, group.kind);
  at::Tensor attended =
      kernels_.Linear(kernels_.Attention(qkv, config, layer, cache_.layer(layer), segments, group.kind),
                      weights.attention_out, group.kind);
  pass(ActivationSite::kAttentionOut, attended);
  const auto mlp = [&] {
    at::Tensor x = kernels_.Norm(residual, weights.mlp_norm, config.norm, config.norm_eps);
    pass(ActivationSite::kMlpIn, x);
    at::Tensor written = mlp_.Run(layer, x, group);
    pass(ActivationSite::kMlpOut, written);
    return written;
  };
  if (config.parallel_residual) {
    const at::Tensor written = mlp();
    residual.add_(attended).add_(written);
  } else {
    residual.add_(attended);
    residual.add_(mlp());
  }
  pass(ActivationSite::kResidualPost, residual);
}

}  // namespace gatehouse
