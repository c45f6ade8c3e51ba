#include "server/engine/analysis/mlp_profile.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/gating/firing.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

// Calls `body` with x and the MLP's output of every batch of a split's entered layer.
absl::Status ForOutputs(const ModelWeights& model, int layer, const SplitStream& split, Work& work,
                        const std::function<void(const at::Tensor& x, const at::Tensor& y)>& body) {
  return split.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * split.window())));
    const at::Tensor x = split.x().narrow(0, first, count);
    const bool kept = split.y().defined() && &model == &split.model();
    body(x, kept ? split.y().narrow(0, first, count) : PlainMlp(model, layer, x));
    return absl::OkStatus();
  });
}

absl::StatusOr<double> NormLimit(const ModelWeights& model, int layer, const SplitStream& split, Work& work) {
  std::vector<at::Tensor> norms;
  GH_RETURN_IF_ERROR(ForOutputs(model, layer, split, work, [&](const at::Tensor&, const at::Tensor& y) {
    norms.push_back(RowNorms(y).flatten());
  }));
  return kNormLimit * at::cat(norms).median().item<double>();
}

at::Tensor Redrawn(const at::Tensor& weight, at::Generator& random) {
  const at::Tensor drawn = at::randn(weight.sizes(), random, at::TensorOptions(at::kFloat));
  const double deviation = weight.to(at::kFloat).std().item<double>();
  return (drawn * deviation).to(weight.options());
}

}  // namespace

at::Tensor RowNorms(const at::Tensor& rows) { return at::linalg_vector_norm(rows, 2, at::IntArrayRef{-1}); }

at::Tensor KeptByNorm(const at::Tensor& norms, int sinks, double norm_limit) {
  at::Tensor kept = norms <= norm_limit;
  if (sinks > 0) kept.narrow(1, 0, sinks).fill_(false);
  return kept;
}

absl::StatusOr<FittedMlp> FitMlp(const ModelWeights& model, int layer, const SplitStream& split, int sinks,
                                 double ridge, Work& work) {
  FittedMlp fitted;
  GH_ASSIGN_OR_RETURN(fitted.norm_limit, NormLimit(model, layer, split, work));
  const int64_t d = model.config.d_model;
  RidgeSums kept_sums(d, d, split.x().device()), sink_sums(d, d, split.x().device());
  GH_RETURN_IF_ERROR(ForOutputs(model, layer, split, work, [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor kept = KeptByNorm(RowNorms(y), sinks, fitted.norm_limit);
    kept_sums.Add(x.index({kept}), y.index({kept}));
    sink_sums.Add(x.index({~kept}), y.index({~kept}));
  }));
  GH_ASSIGN_OR_RETURN(fitted.surrogate, kept_sums.Solve(ridge));
  sink_sums.Add(kept_sums);
  GH_ASSIGN_OR_RETURN(fitted.with_sinks, sink_sums.Solve(ridge));
  return fitted;
}

absl::StatusOr<at::Tensor> KeptTokens(const ModelWeights& model, int layer, const FittedMlp& fitted,
                                      const SplitStream& split, int sinks, Work& work) {
  std::vector<at::Tensor> kept;
  GH_RETURN_IF_ERROR(ForOutputs(model, layer, split, work, [&](const at::Tensor&, const at::Tensor& y) {
    kept.push_back(KeptByNorm(RowNorms(y), sinks, fitted.norm_limit));
  }));
  return at::cat(kept);
}

absl::StatusOr<MlpObservation> ObserveMlp(const ModelWeights& model, int layer, const FittedMlp& fitted,
                                          std::span<const SplitStream* const> splits, int sinks, Work& work) {
  int64_t tokens = 0;
  for (const SplitStream* split : splits) tokens += split->tokens();
  MlpObservation observation;
  observation.firing = at::empty({tokens, model.config.d_mlp}, splits[0]->x().options().dtype(at::kBool));
  int64_t row = 0;
  for (const SplitStream* split : splits) {
    std::vector<at::Tensor> kept_batches;
    GH_RETURN_IF_ERROR(split->ForBatches([&](int64_t first, int64_t count) -> absl::Status {
      GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * split->window())));
      const at::Tensor x = split->x().narrow(0, first, count);
      at::Tensor activations;
      const at::Tensor y = PlainMlp(model, layer, x, &activations);
      const at::Tensor kept = KeptByNorm(RowNorms(y), sinks, fitted.norm_limit);
      const at::Tensor score = RowNorms(y - fitted.surrogate.Predict(x)).index({kept}).to(at::kDouble).cpu();
      observation.scores.insert(observation.scores.end(), score.const_data_ptr<double>(),
                                score.const_data_ptr<double>() + score.numel());
      observation.firing.narrow(0, row, score.numel()).copy_(activations.index({kept}) > kFiringThreshold);
      row += score.numel();
      kept_batches.push_back(kept);
      return absl::OkStatus();
    }));
    observation.kept.push_back(at::cat(kept_batches));
  }
  if (row == 0) return absl::FailedPreconditionError(StrCat("layer ", layer, ": every token is a sink"));
  observation.firing = observation.firing.narrow(0, 0, row);
  return observation;
}

absl::StatusOr<SurrogateR2> MeasureR2(const ModelWeights& model, int layer, const FittedMlp& fitted,
                                      const SplitStream& split, int sinks, Work& work) {
  R2Sums without, with;
  GH_RETURN_IF_ERROR(ForOutputs(model, layer, split, work, [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor kept = KeptByNorm(RowNorms(y), sinks, fitted.norm_limit);
    without.Add(y.index({kept}), fitted.surrogate.Predict(x).index({kept}), fitted.surrogate.output_mean);
    with.Add(y.flatten(0, 1), fitted.with_sinks.Predict(x).flatten(0, 1), fitted.with_sinks.output_mean);
  }));
  return SurrogateR2{without.Value(), with.Value()};
}

ModelWeights WithRandomMlp(const ModelWeights& model, int layer, uint64_t seed) {
  ModelWeights random_model = model;
  at::Generator random = at::detail::createCPUGenerator(seed);
  LayerWeights& weights = random_model.layers[layer];
  for (LinearWeights* linear : {&weights.mlp_in, &weights.mlp_out}) {
    linear->weight = Redrawn(linear->weight, random);
    if (linear->bias.defined()) linear->bias = at::zeros_like(linear->bias);
  }
  return random_model;
}

}  // namespace gatehouse
