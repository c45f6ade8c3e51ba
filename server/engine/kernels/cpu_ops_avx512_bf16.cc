#include "server/engine/kernels/simd_avx512.h"
//
#include "server/engine/kernels/cpu_ops_impl.h"

namespace gatehouse {
namespace {

// 32 products in one instruction, added in pairs.
struct NativeBf16Dot {
  using W = uint16_t;
  using X = uint16_t;
  using WV = __m512bh;
  static constexpr int kStep = 32;
  static WV LoadW(const W* w) { return reinterpret_cast<WV>(_mm512_loadu_si512(w)); }
  static F Mac(F sum, WV w, const X* x) { return _mm512_dpbf16_ps(sum, w, LoadW(x)); }

  static void Stage(const float* x, int64_t n, void* staged) {
    auto* y = static_cast<uint16_t*>(staged);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const __m256bh narrow = _mm512_cvtneps_pbh(Simd::Load(x + i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), reinterpret_cast<__m256i>(narrow));
    }
    ToBf16(x + i, n - i, y + i);
  }
};

}  // namespace

const CpuOps& Avx512Bf16CpuOps() {
  static constexpr CpuOps kOps = MakeOps<NativeBf16Dot>();
  return kOps;
}

}  // namespace gatehouse
