#ifndef GATEHOUSE_SERVER_ENGINE_SAMPLING_H_
#define GATEHOUSE_SERVER_ENGINE_SAMPLING_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse {

// How the next token is chosen.  Applied in this order: logit bias, repetition
// penalty, temperature, top-k, top-p, min-p, then a draw.
struct SamplingParams {
  float temperature = 1;         // ≥ 0; 0 takes the most likely token
  int top_k = 0;                 // 0 keeps all
  float top_p = 1;               // in [0, 1]; at least one token is kept
  float min_p = 0;               // in [0, 1]
  float repetition_penalty = 1;  // > 0
  std::map<int32_t, float> logit_bias;
  uint64_t seed = 0;
};

// The sampler of one sequence: its parameters, the tokens seen so far (for the
// repetition penalty) and how many draws were made.  The n-th draw depends on the
// seed and n alone, so neighbours in a batch cannot change it.  Owned by the request;
// used by one thread at a time.
class SamplingState {
 public:
  // InvalidArgument naming the field and its bound; also when every token is biased
  // to −∞.
  static absl::StatusOr<SamplingState> Create(SamplingParams params, int vocab_size);

  const SamplingParams& params() const { return params_; }
  // Each id once, in order of first appearance.
  std::span<const int32_t> seen() const { return seen_; }
  void Observe(std::span<const int32_t> ids);

  // The next draw, uniform in [0, 1).
  double NextUniform();

 private:
  SamplingState(SamplingParams params, int vocab_size);

  SamplingParams params_;
  std::vector<int32_t> seen_;
  std::vector<bool> is_seen_;
  uint64_t draws_ = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_SAMPLING_H_
