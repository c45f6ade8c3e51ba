#include "server/engine/kernels/portable_sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/engine/kernels/sampling_math.h"

namespace gatehouse {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

template <typename T>
at::Tensor ToDevice(const std::vector<T>& values, const at::Tensor& like) {
  return at::tensor(values, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value)).to(like.device());
}

// log Σ exp over the last dimension: [..., vocab] float32 → [...] float64.
at::Tensor LogSumExp(const at::Tensor& logits) {
  const at::Tensor max = logits.amax(-1, /*keepdim=*/true);
  const at::Tensor sum = at::sum((logits - max).exp_(), {-1}, /*keepdim=*/false, at::kDouble);
  return sum.log_() + max.squeeze(-1);
}

// 1 where a row holds NaN or +∞, 2 where it holds nothing but −∞, else 0: [..., vocab]
// → [...] float64.
at::Tensor Faults(const at::Tensor& logits) {
  const at::Tensor max = logits.amax(-1);  // NaN wins
  return at::where(max < kInfinity, at::where(max == -kInfinity, 2.0, 0.0), 1.0).to(at::kDouble);
}

absl::Status FaultStatus(double fault) {
  if (fault == 1) return BrokenLogits();
  if (fault == 2) return NothingToSample();
  return absl::OkStatus();
}

// Most likely first, ties by lower id: values [rows, top] float32 and ids [rows, top]
// int64.
std::pair<at::Tensor, at::Tensor> Top(const at::Tensor& logits, int top) {
  auto [values, ids] = at::sort(logits, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  return {values.narrow(-1, 0, top), ids.narrow(-1, 0, top)};
}

// Logit bias, then repetition penalty: [vocab] → [vocab].
at::Tensor Adjusted(const at::Tensor& logits, const SamplingState& state) {
  const SamplingParams& params = state.params();
  at::Tensor adjusted = logits;
  if (!params.logit_bias.empty()) {
    std::vector<int64_t> ids;
    std::vector<float> bias;
    for (const auto& [id, value] : params.logit_bias) {
      ids.push_back(id);
      bias.push_back(value);
    }
    adjusted = adjusted.index_add(0, ToDevice(ids, logits), ToDevice(bias, logits)).clamp_max_(kMax);
  }
  if (params.repetition_penalty != 1 && !state.seen().empty()) {
    const at::Tensor ids = ToDevice(std::vector<int64_t>(state.seen().begin(), state.seen().end()), logits);
    const at::Tensor old = adjusted.index_select(0, ids);
    const float penalty = params.repetition_penalty;
    const at::Tensor scaled = at::where(old > 0, old / at::full_like(old, penalty), old * penalty).clamp_(-kMax, kMax);
    adjusted = adjusted.index_copy(0, ids, at::where(old == -kInfinity, old, scaled));
  }
  return adjusted;
}

// Weights of the tokens that may be drawn, in proportion to their probability; 0 for
// the others.  [vocab] float32 → [vocab] float64.
at::Tensor DrawWeights(const at::Tensor& adjusted, const SamplingParams& params) {
  const at::Tensor shifted = adjusted - adjusted.max();
  const at::Tensor weights = (shifted / EffectiveTemperature(params.temperature)).exp_().to(at::kDouble);
  const int64_t vocab = weights.size(0);
  const bool cut_k = params.top_k > 0 && params.top_k < vocab;
  const bool cut_p = params.top_p < 1;
  if (!cut_k && !cut_p && params.min_p == 0) return weights;

  // By the logits, not the weights: those of unlike tokens may both be 0.
  const at::Tensor order = std::get<1>(at::sort(adjusted, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
  at::Tensor sorted = weights.index_select(0, order);
  if (cut_k) sorted.narrow(0, params.top_k, vocab - params.top_k).zero_();
  if (cut_p) {
    const at::Tensor sums = sorted.cumsum(0);
    at::Tensor keep = (sums - sorted) < params.top_p * sums.narrow(0, vocab - 1, 1);
    keep.narrow(0, 0, 1).fill_(true);
    sorted = sorted * keep;
  }
  if (params.min_p > 0) sorted = sorted * (sorted >= params.min_p * sorted.narrow(0, 0, 1));
  return at::zeros_like(weights).index_copy_(0, order, sorted);
}

// The id the draw `uniform` falls on: tokens lie along [0, 1) in order of id, each as
// wide as its probability.  → [1] int64.
at::Tensor Pick(const at::Tensor& weights, double uniform) {
  const at::Tensor sums = weights.cumsum(0);
  const at::Tensor total = sums.narrow(0, sums.size(0) - 1, 1);
  const at::Tensor found = at::searchsorted(sums, total * uniform, /*out_int32=*/false, /*right=*/true);
  // Rounding may carry the draw past the last token that has any weight.
  const at::Tensor last = weights.size(0) - 1 - (weights > 0).flip(0).to(at::kInt).argmax(0, /*keepdim=*/true);
  return at::minimum(found, last);
}

std::vector<TokenLogprob> ReadTop(const double* ids, const double* logprobs, int top) {
  std::vector<TokenLogprob> list(top);
  for (int i = 0; i < top; ++i) list[i] = {static_cast<int32_t>(ids[i]), static_cast<float>(logprobs[i])};
  return list;
}

}  // namespace

absl::StatusOr<SampledToken> PortableSample(const at::Tensor& logits, SamplingState& state, int top) {
  const SamplingParams& params = state.params();
  top = std::min<int>(top, logits.size(0));
  const at::Tensor adjusted = Adjusted(logits, state);
  const at::Tensor id = params.temperature == 0 ? adjusted.argmax(0, /*keepdim=*/true)
                                                : Pick(DrawWeights(adjusted, params), state.NextUniform());
  const at::Tensor normalizer = LogSumExp(logits).view({1});
  std::vector<at::Tensor> parts = {at::maximum(Faults(logits), Faults(adjusted)).view({1}), id.to(at::kDouble),
                                   logits.index_select(0, id) - normalizer};
  if (top > 0) {
    const auto [values, ids] = Top(logits, top);
    parts.push_back(ids.to(at::kDouble));
    parts.push_back(values - normalizer);
  }
  const at::Tensor host = at::cat(parts).cpu();
  const double* numbers = host.const_data_ptr<double>();
  GH_RETURN_IF_ERROR(FaultStatus(numbers[0]));

  SampledToken sampled;
  sampled.token = {static_cast<int32_t>(numbers[1]), static_cast<float>(numbers[2])};
  sampled.top = ReadTop(numbers + 3, numbers + 3 + top, top);
  state.Observe({&sampled.token.id, 1});
  return sampled;
}

absl::StatusOr<Kernels::TargetLogprobs> PortableLogprobs(const at::Tensor& logits, std::span<const int32_t> targets,
                                                         int top) {
  Kernels::TargetLogprobs result;
  result.logprobs.assign(targets.size(), std::numeric_limits<float>::quiet_NaN());
  result.top.resize(targets.size());
  std::vector<int64_t> rows;
  std::vector<int64_t> ids;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    GH_RETURN_IF_ERROR(CheckTarget(targets[i], logits.size(1)));
    rows.push_back(static_cast<int64_t>(i));
    ids.push_back(targets[i]);
  }
  if (rows.empty()) return result;

  top = std::min<int>(top, logits.size(1));
  const at::Tensor chosen = rows.size() == targets.size() ? logits : logits.index_select(0, ToDevice(rows, logits));
  const at::Tensor normalizer = LogSumExp(chosen).unsqueeze(1);
  std::vector<at::Tensor> parts = {Faults(chosen).unsqueeze(1),
                                   chosen.gather(1, ToDevice(ids, logits).unsqueeze(1)) - normalizer};
  if (top > 0) {
    const auto [values, top_ids] = Top(chosen, top);
    parts.push_back(top_ids.to(at::kDouble));
    parts.push_back(values - normalizer);
  }
  const at::Tensor host = at::cat(parts, 1).cpu();
  for (size_t i = 0; i < rows.size(); ++i) {
    const double* numbers = host.const_data_ptr<double>() + i * host.size(1);
    GH_RETURN_IF_ERROR(FaultStatus(numbers[0]));
    result.logprobs[rows[i]] = static_cast<float>(numbers[1]);
    result.top[rows[i]] = ReadTop(numbers + 2, numbers + 2 + top, top);
  }
  return result;
}

}  // namespace gatehouse
