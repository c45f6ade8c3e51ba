#include "server/engine/kernels/cpu_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "server/base/status_macros.h"
#include "server/engine/kernels/sampling_math.h"

namespace gatehouse {
namespace {

// The ids of the `count` largest values, largest first, ties by lower id.
std::vector<int32_t> TopIds(std::span<const float> values, int64_t count) {
  const auto before = [&](int32_t a, int32_t b) { return values[a] > values[b] || (values[a] == values[b] && a < b); };
  count = std::min<int64_t>(count, values.size());
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  if (count == 0) return ids;
  if (count > 1024) {
    ids.resize(values.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::nth_element(ids.begin(), ids.begin() + count - 1, ids.end(), before);
    ids.resize(count);
  } else {
    // A heap whose top is the last of the chosen.
    std::make_heap(ids.begin(), ids.end(), before);
    float last = values[ids.front()];
    for (int32_t id = count; id < static_cast<int32_t>(values.size()); ++id) {
      if (!(values[id] > last)) continue;  // an equal one has a higher id
      std::pop_heap(ids.begin(), ids.end(), before);
      ids.back() = id;
      std::push_heap(ids.begin(), ids.end(), before);
      last = values[ids.front()];
    }
  }
  std::sort(ids.begin(), ids.end(), before);
  return ids;
}

// Σ weights in double, four running sums at a time.
double Total(std::span<const float> weights) {
  double sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= weights.size(); i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += weights[i + j];
  }
  for (; i < weights.size(); ++i) sums[0] += weights[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The id in [first, last) on which `point` falls where ids lie side by side, each as wide
// as its weight; nothing where the point is beyond them all.
std::optional<int32_t> Find(std::span<const float> weights, int32_t first, int32_t last, double point) {
  double sum = 0;
  for (int32_t id = first; id < last; ++id) {
    sum += weights[id];
    if (sum > point) return id;
  }
  return std::nullopt;
}

// Rounding may carry a draw past the last token that has any weight.
int32_t LastWithWeight(std::span<const float> weights) {
  int32_t id = static_cast<int32_t>(weights.size()) - 1;
  while (id > 0 && weights[id] == 0) --id;
  return id;
}

// A draw from all tokens.
int32_t PickFromAll(std::span<const float> weights, double uniform) {
  constexpr int32_t kBlock = 1024;
  std::vector<double> blocks;
  for (size_t first = 0; first < weights.size(); first += kBlock) {
    blocks.push_back(Total(weights.subspan(first, std::min<size_t>(kBlock, weights.size() - first))));
  }
  double point = uniform * std::accumulate(blocks.begin(), blocks.end(), 0.0);
  for (size_t block = 0; block < blocks.size(); ++block) {
    if (point < blocks[block]) {
      const int32_t first = static_cast<int32_t>(block) * kBlock;
      const int32_t last = std::min<int32_t>(first + kBlock, weights.size());
      if (const auto id = Find(weights, first, last, point)) return *id;
      return LastWithWeight(weights.first(last));
    }
    point -= blocks[block];
  }
  return LastWithWeight(weights);
}

// A draw from some tokens.
int32_t PickFrom(std::vector<int32_t> ids, std::span<const float> weights, double uniform) {
  std::sort(ids.begin(), ids.end());
  std::vector<float> kept(ids.size());
  std::transform(ids.begin(), ids.end(), kept.begin(), [&](int32_t id) { return weights[id]; });
  const double total = std::accumulate(kept.begin(), kept.end(), 0.0);
  const auto found = Find(kept, 0, static_cast<int32_t>(kept.size()), uniform * total);
  return ids[found ? *found : LastWithWeight(kept)];
}

// The shortest run of most likely tokens, at most `limit`, that holds `top_p` of the
// weight of the `limit` most likely.
std::vector<int32_t> Nucleus(std::span<const float> adjusted, std::span<const float> weights, int64_t limit,
                             double top_p) {
  const bool all = limit == static_cast<int64_t>(adjusted.size());
  std::vector<int32_t> ids = TopIds(adjusted, all ? 64 : limit);
  double total = 0;
  if (all) {
    total = Total(weights);
  } else {
    for (const int32_t id : ids) total += weights[id];
  }
  double sum = 0;
  for (size_t kept = 0; kept < ids.size(); ++kept) {
    if (kept > 0 && !(sum < top_p * total)) {
      ids.resize(kept);
      return ids;
    }
    sum += weights[ids[kept]];
    if (kept + 1 == ids.size() && static_cast<int64_t>(ids.size()) < limit) {
      ids = TopIds(adjusted, std::min<int64_t>(limit, 8 * ids.size()));
    }
  }
  return ids;
}

// See TokenLogprob.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, double normalizer, int top) {
  std::vector<TokenLogprob> list;
  for (const int32_t id : TopIds(logits, top)) list.push_back({id, static_cast<float>(logits[id] - normalizer)});
  return list;
}

absl::Status CheckMax(float max) {
  if (!(max < kInfinity)) return BrokenLogits();
  if (max == -kInfinity) return NothingToSample();
  return absl::OkStatus();
}

}  // namespace

std::span<const float> CpuSampler::Adjust(std::span<const float> logits, const SamplingState& state) {
  const SamplingParams& params = state.params();
  const bool penalize = params.repetition_penalty != 1 && !state.seen().empty();
  if (params.logit_bias.empty() && !penalize) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) adjusted_[id] = Biased(adjusted_[id], bias);
  if (penalize) {
    for (const int32_t id : state.seen()) adjusted_[id] = Penalized(adjusted_[id], params.repetition_penalty);
  }
  return adjusted_;
}

int32_t CpuSampler::Draw(std::span<const float> adjusted, float max, const SamplingParams& params, double uniform) {
  weights_.resize(adjusted.size());
  ops_.exp_shifted(adjusted.data(), max, 1 / EffectiveTemperature(params.temperature),
                   static_cast<int64_t>(adjusted.size()), weights_.data());
  const int64_t vocab = static_cast<int64_t>(adjusted.size());
  const bool cut_k = params.top_k > 0 && params.top_k < vocab;
  const bool cut_p = params.top_p < 1;
  if (!cut_k && !cut_p && params.min_p == 0) return PickFromAll(weights_, uniform);

  const int64_t limit = cut_k ? params.top_k : vocab;
  // The most likely token has weight exp(0) = 1.
  const auto likely = [&](int32_t id) { return weights_[id] >= params.min_p; };
  std::vector<int32_t> ids;
  if (cut_p) {
    ids = Nucleus(adjusted, weights_, limit, params.top_p);
  } else if (cut_k) {
    ids = TopIds(adjusted, limit);
  } else {
    for (int32_t id = 0; id < vocab; ++id) {
      if (likely(id)) ids.push_back(id);
    }
  }
  std::erase_if(ids, [&](int32_t id) { return !likely(id); });
  return PickFrom(std::move(ids), weights_, uniform);
}

absl::StatusOr<SampledToken> CpuSampler::Sample(std::span<const float> logits, SamplingState& state, int top) {
  const int64_t vocab = static_cast<int64_t>(logits.size());
  const float max = ops_.max(logits.data(), vocab);
  GH_RETURN_IF_ERROR(CheckMax(max));
  const std::span<const float> adjusted = Adjust(logits, state);
  const float adjusted_max = adjusted.data() == logits.data() ? max : ops_.max(adjusted.data(), vocab);
  GH_RETURN_IF_ERROR(CheckMax(adjusted_max));

  SampledToken sampled;
  const SamplingParams& params = state.params();
  sampled.token.id = params.temperature == 0
                         ? static_cast<int32_t>(std::ranges::find(adjusted, adjusted_max) - adjusted.begin())
                         : Draw(adjusted, adjusted_max, params, state.NextUniform());
  const double normalizer = std::log(ops_.sum_exp(logits.data(), max, vocab)) + max;
  sampled.token.logprob = static_cast<float>(logits[sampled.token.id] - normalizer);
  sampled.top = TopLogprobs(logits, normalizer, top);
  state.Observe({&sampled.token.id, 1});
  return sampled;
}

absl::StatusOr<Kernels::TargetLogprobs> CpuSampler::Logprobs(const float* logits, int64_t vocab,
                                                             std::span<const int32_t> targets, int top,
                                                             WorkerPool& pool) const {
  Kernels::TargetLogprobs result;
  result.logprobs.assign(targets.size(), std::numeric_limits<float>::quiet_NaN());
  result.top.resize(targets.size());
  for (const int32_t target : targets) GH_RETURN_IF_ERROR(CheckTarget(target, vocab));

  std::vector<float> maxima(targets.size(), 0);
  pool.Run(static_cast<int>(targets.size()), [&](int row, int) {
    if (targets[row] < 0) return;
    const std::span<const float> values(logits + row * vocab, vocab);
    maxima[row] = ops_.max(values.data(), vocab);
    if (!CheckMax(maxima[row]).ok()) return;
    const double normalizer = std::log(ops_.sum_exp(values.data(), maxima[row], vocab)) + maxima[row];
    result.logprobs[row] = static_cast<float>(values[targets[row]] - normalizer);
    result.top[row] = TopLogprobs(values, normalizer, top);
  });
  for (const float max : maxima) GH_RETURN_IF_ERROR(CheckMax(max));
  return result;
}

}  // namespace gatehouse
