#include "server/engine/gating/firing.h"

#include <ATen/ops/gt.h>

namespace gatehouse {

std::vector<uint64_t> FiringBits(const at::Tensor& activations) {
  std::vector<uint64_t> bits(activations.size(0), 0);
  if (activations.size(1) == 0) return bits;
  const at::Tensor fires = at::gt(activations, kFiringThreshold).to(at::kCPU).contiguous();
  const bool* cell = fires.const_data_ptr<bool>();
  for (uint64_t& row : bits) {
    for (int64_t i = 0; i < activations.size(1); ++i) row |= uint64_t{*cell++} << i;
  }
  return bits;
}

}  // namespace gatehouse
