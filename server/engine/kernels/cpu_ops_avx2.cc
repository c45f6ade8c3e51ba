#include <immintrin.h>

#include <cstdint>

namespace gatehouse {
namespace {

// AVX2 and FMA.
struct Simd {
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kMaxTileRows = 4;

  // Rows of weights in a tile of `rows` inputs: what 16 registers hold.
  static constexpr int TileOutputs(int rows) {
    constexpr int kOutputs[] = {8, 4, 3, 3};
    return kOutputs[rows - 1];
  }

  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* x) { return _mm256_loadu_ps(x); }
  static F LoadBf16(const uint16_t* x) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  static void Store(F x, float* y) { _mm256_storeu_ps(y, x); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  // a b + c.
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // b where either is NaN.
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  // x 2ⁿ, n whole and in [−126, 128].
  static F TimesPowerOfTwo(F x, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  // 0 where x < bound, else y.
  static F ZeroBelow(F x, float bound, F y) { return _mm256_and_ps(y, _mm256_cmp_ps(x, Set(bound), _CMP_NLT_UQ)); }
  // x < 0 ? a : b.
  static F IfNegative(F x, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, Set(0), _CMP_LT_OQ)); }
  // NaN where x is, else `mark`.
  static F OrNan(F mark, F x) { return _mm256_blendv_ps(mark, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

  // The sum of the lanes, always in the same order.
  static float Sum(F x) {
    const __m128 q = Half(x);
    const __m128 pairs = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
  }
  // Four sums at once, each as Sum makes it.
  static void Sum4(F a, F b, F c, F d, float* sums) {
    __m128 q0 = Half(a), q1 = Half(b), q2 = Half(c), q3 = Half(d);
    _MM_TRANSPOSE4_PS(q0, q1, q2, q3);
    _mm_storeu_ps(sums, _mm_add_ps(_mm_add_ps(q0, q2), _mm_add_ps(q1, q3)));
  }

 private:
  static __m128 Half(F x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
};

}  // namespace
}  // namespace gatehouse

#include "server/engine/kernels/cpu_ops_impl.h"

namespace gatehouse {

const CpuOps& Avx2CpuOps() {
  static constexpr CpuOps kOps = MakeOps<Bf16DotOfFloats>();
  return kOps;
}

}  // namespace gatehouse
