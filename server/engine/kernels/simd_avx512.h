// Simd with AVX-512 (F, BW, DQ, VL).  See cpu_ops_impl.h for why nothing here may have
// external linkage.

#include <immintrin.h>

#include <cstdint>

namespace gatehouse {
namespace {

struct Simd {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kMaxTileRows = 8;

  // Rows of weights in a tile of `rows` inputs: what 32 registers hold.
  static constexpr int TileOutputs(int rows) {
    constexpr int kOutputs[] = {8, 8, 6, 4, 4, 4, 3, 3};
    return kOutputs[rows - 1];
  }

  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* x) { return _mm512_loadu_ps(x); }
  static F LoadBf16(const uint16_t* x) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static void Store(F x, float* y) { _mm512_storeu_ps(y, x); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  // a b + c.
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // b where either is NaN.
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  // x 2ⁿ, n whole and in [−126, 128].
  static F TimesPowerOfTwo(F x, F n) { return _mm512_scalef_ps(x, n); }
  // 0 where x < bound, else y.
  static F ZeroBelow(F x, float bound, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, Set(bound), _CMP_NLT_UQ), y);
  }
  // x < 0 ? a : b.
  static F IfNegative(F x, F a, F b) { return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, Set(0), _CMP_LT_OQ), a); }
  // NaN where x is, else `mark`.
  static F OrNan(F mark, F x) { return _mm512_mask_mov_ps(mark, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x); }

  // The sum of the lanes, always in the same order.
  static float Sum(F x) {
    const __m128 q = Quarter(x);
    const __m128 pairs = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
  }
  // Four sums at once, each as Sum makes it.
  static void Sum4(F a, F b, F c, F d, float* sums) {
    __m128 q0 = Quarter(a), q1 = Quarter(b), q2 = Quarter(c), q3 = Quarter(d);
    _MM_TRANSPOSE4_PS(q0, q1, q2, q3);
    _mm_storeu_ps(sums, _mm_add_ps(_mm_add_ps(q0, q2), _mm_add_ps(q1, q3)));
  }

 private:
  static __m128 Quarter(F x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
};

}  // namespace
}  // namespace gatehouse
