#ifndef GATEHOUSE_SERVER_ENGINE_GATING_FIRING_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_FIRING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gatehouse {

// A neuron fires where its activation exceeds this (methods B.4).
inline constexpr double kFiringThreshold = 0.1;

// Which neurons fire: bit i of each row says so of column i.  activations:
// [rows, k] float32, of a gated MLP those of the gate; k ≤ 64.
std::vector<uint64_t> FiringBits(const at::Tensor& activations);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_FIRING_H_
