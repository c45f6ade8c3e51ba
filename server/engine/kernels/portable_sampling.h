#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_PORTABLE_SAMPLING_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_PORTABLE_SAMPLING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "server/engine/kernels/kernels.h"

namespace gatehouse {

// Sampling in LibTorch's operators, on the logits' own device: what crosses to the
// host is a few numbers per token, nothing of vocabulary size.  See Kernels.

// logits: [vocab] float32.
absl::StatusOr<SampledToken> PortableSample(const at::Tensor& logits, SamplingState& state, int top);

// logits: [rows, vocab] float32; one target per row, −1 for none.
absl::StatusOr<Kernels::TargetLogprobs> PortableLogprobs(const at::Tensor& logits, std::span<const int32_t> targets,
                                                         int top);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_PORTABLE_SAMPLING_H_
