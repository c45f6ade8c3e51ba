#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_SAMPLING_MATH_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_SAMPLING_MATH_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "server/base/strings.h"

namespace gatehouse {

// What every implementation of sampling agrees on.

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A temperature below this one divides like it: all but the most likely tokens have
// probability 0 either way, and its reciprocal is a number.
inline float EffectiveTemperature(float temperature) { return std::max(temperature, 1e-30F); }

// Finite stays finite: a sum beyond the largest number is that number.
inline float Biased(float logit, float bias) { return std::min(logit + bias, std::numeric_limits<float>::max()); }

// The repetition penalty pushes a logit down whatever its sign.  Finite stays finite.
inline float Penalized(float logit, float penalty) {
  constexpr float kMax = std::numeric_limits<float>::max();
  if (logit == -kInfinity) return logit;
  return std::clamp(logit > 0 ? logit / penalty : logit * penalty, -kMax, kMax);
}

inline absl::Status BrokenLogits() {
  return absl::InternalError("the model produced a logit that is NaN or +infinity");
}

inline absl::Status CheckTarget(int32_t id, int64_t vocab_size) {
  if (id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("target: token id ", id, " is not in [0, ", vocab_size, ")"));
}

inline absl::Status NothingToSample() {
  return absl::InternalError("every logit is -infinity: no token can be sampled");
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_SAMPLING_MATH_H_
