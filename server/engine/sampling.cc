#include "server/engine/sampling.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

// SplitMix64's output function: every bit of the result depends on every bit of `x`.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

absl::Status ValidateBias(const std::map<int32_t, float>& bias, int vocab_size) {
  int excluded = 0;
  for (const auto& [id, value] : bias) {
    if (!(id >= 0 && id < vocab_size)) {
      return absl::InvalidArgumentError(StrCat("logit_bias: token id ", id, " is not in [0, ", vocab_size, ")"));
    }
    if (!(value < std::numeric_limits<float>::infinity())) {  // also NaN
      return absl::InvalidArgumentError(
          StrCat("logit_bias: the bias of token id ", id, " must be a finite number or -infinity, not ", value));
    }
    if (std::isinf(value)) ++excluded;
  }
  if (excluded == vocab_size) {
    return absl::InvalidArgumentError("logit_bias: every token is biased to -infinity; none could be sampled");
  }
  return absl::OkStatus();
}

absl::Status Validate(const SamplingParams& params, int vocab_size) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!(params.temperature >= 0 && params.temperature < kInfinity)) {
    return absl::InvalidArgumentError(
        StrCat("temperature must be a finite number of at least 0, not ", params.temperature));
  }
  if (params.top_k < 0) {
    return absl::InvalidArgumentError(StrCat("top_k must be at least 0, not ", params.top_k));
  }
  if (!(params.top_p >= 0 && params.top_p <= 1)) {
    return absl::InvalidArgumentError(StrCat("top_p must be in [0, 1], not ", params.top_p));
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return absl::InvalidArgumentError(StrCat("min_p must be in [0, 1], not ", params.min_p));
  }
  if (!(params.repetition_penalty > 0 && params.repetition_penalty < kInfinity)) {
    return absl::InvalidArgumentError(
        StrCat("repetition_penalty must be a finite number above 0, not ", params.repetition_penalty));
  }
  return ValidateBias(params.logit_bias, vocab_size);
}

}  // namespace

absl::StatusOr<SamplingState> SamplingState::Create(SamplingParams params, int vocab_size) {
  if (absl::Status status = Validate(params, vocab_size); !status.ok()) return status;
  return SamplingState(std::move(params), vocab_size);
}

SamplingState::SamplingState(SamplingParams params, int vocab_size)
    : params_(std::move(params)), is_seen_(vocab_size, false) {}

void SamplingState::Observe(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= static_cast<int64_t>(is_seen_.size()) || is_seen_[id]) continue;
    is_seen_[id] = true;
    seen_.push_back(id);
  }
}

double SamplingState::NextUniform() {
  const uint64_t bits = Mix(Mix(params_.seed) ^ draws_++);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace gatehouse
