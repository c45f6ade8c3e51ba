#include "server/engine/kernels/simd_avx512.h"
//
#include "server/engine/kernels/cpu_ops_impl.h"

namespace gatehouse {

const CpuOps& Avx512CpuOps() {
  static constexpr CpuOps kOps = MakeOps<Bf16DotOfFloats>();
  return kOps;
}

}  // namespace gatehouse
