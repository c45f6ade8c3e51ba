#include <cstdint>

namespace gatehouse {
namespace {

// Four floats by the compiler's own vector type: any processor.
struct Simd {
  using F = float __attribute__((vector_size(16)));
  using I = int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kMaxTileRows = 4;

  // Rows of weights in a tile of `rows` inputs: what 16 registers hold.
  static constexpr int TileOutputs(int rows) {
    constexpr int kOutputs[] = {8, 4, 3, 2};
    return kOutputs[rows - 1];
  }

  static F Set(float x) { return F{x, x, x, x}; }
  static F Load(const float* x) {
    F y;
    __builtin_memcpy(&y, x, sizeof(y));
    return y;
  }
  static F LoadBf16(const uint16_t* x) { return reinterpret_cast<F>(I{x[0], x[1], x[2], x[3]} << 16); }
  static void Store(F x, float* y) { __builtin_memcpy(y, &x, sizeof(x)); }
  static F Add(F a, F b) { return a + b; }
  static F Sub(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
  static F Div(F a, F b) { return a / b; }
  // a b + c.
  static F Fma(F a, F b, F c) { return a * b + c; }
  // b where either is NaN.
  static F Max(F a, F b) { return a > b ? a : b; }
  static F Min(F a, F b) { return a < b ? a : b; }
  // x 2ⁿ, n whole and in [−126, 128].
  static F TimesPowerOfTwo(F x, F n) { return x * reinterpret_cast<F>((__builtin_convertvector(n, I) + 127) << 23); }
  // 0 where x < bound, else y.
  static F ZeroBelow(F x, float bound, F y) { return x < Set(bound) ? Set(0) : y; }
  // x < 0 ? a : b.
  static F IfNegative(F x, F a, F b) { return x < Set(0) ? a : b; }
  // NaN where x is, else `mark`.
  static F OrNan(F mark, F x) { return x == x ? mark : x; }

  // The sum of the lanes, always in the same order.
  static float Sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  // Four sums at once, each as Sum makes it.
  static void Sum4(F a, F b, F c, F d, float* sums) {
    sums[0] = Sum(a);
    sums[1] = Sum(b);
    sums[2] = Sum(c);
    sums[3] = Sum(d);
  }
};

}  // namespace
}  // namespace gatehouse

#include "server/engine/kernels/cpu_ops_impl.h"

namespace gatehouse {

const CpuOps& GenericCpuOps() {
  static constexpr CpuOps kOps = MakeOps<Bf16DotOfFloats>();
  return kOps;
}

}  // namespace gatehouse
