#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_SAMPLING_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_SAMPLING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/kernels/cpu_ops.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/kernels/worker_pool.h"

namespace gatehouse {

// Sampling on the CPU (see Kernels::Sample and Logprobs).  The vocabulary is sorted only
// as far as the answer needs.  Owned by the CPU kernels; one thread at a time.
class CpuSampler {
 public:
  explicit CpuSampler(const CpuOps& ops) : ops_(ops) {}

  absl::StatusOr<SampledToken> Sample(std::span<const float> logits, SamplingState& state, int top);

  // logits: [targets.size(), vocab].
  absl::StatusOr<Kernels::TargetLogprobs> Logprobs(const float* logits, int64_t vocab, std::span<const int32_t> targets,
                                                   int top, WorkerPool& pool) const;

 private:
  // Logit bias, then repetition penalty; `logits` itself where there is neither.
  std::span<const float> Adjust(std::span<const float> logits, const SamplingState& state);
  // Draws from the distribution that `params` make of adjusted logits whose maximum is
  // `max`.
  int32_t Draw(std::span<const float> adjusted, float max, const SamplingParams& params, double uniform);

  const CpuOps& ops_;
  std::vector<float> adjusted_;
  std::vector<float> weights_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_SAMPLING_H_
