// The inner loops behind CpuOps.  Included once by each cpu_ops_<set>.cc, after it has
// defined `Simd`: F, a vector of kLanes floats of its instruction set, and what can be
// done with one.
//
// Those files are compiled with flags of their own, so nothing here may have external
// linkage or call an inline function of another header: the linker could keep the copy
// that was compiled for a processor this machine is not.

#include <cstdint>

#include "server/engine/kernels/cpu_ops.h"
#include "server/engine/kernels/cpu_ops_products.h"

namespace gatehouse {
namespace {

// A vector of the last n < kLanes numbers, the rest filled.
inline F LoadTail(const float* x, int64_t n, float fill) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? x[i] : fill;
  return Simd::Load(lanes);
}

inline void StoreTail(F value, int64_t n, float* y) {
  float lanes[kLanes];
  Simd::Store(value, lanes);
  for (int64_t i = 0; i < n; ++i) y[i] = lanes[i];
}

// y = f(x), number by number.
template <typename Fn>
inline void Map(const float* x, int64_t n, float* y, Fn f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Simd::Store(f(Simd::Load(x + i)), y + i);
  if (i < n) StoreTail(f(LoadTail(x + i, n - i, 0)), n - i, y + i);
}

// Σ f(x).  f(fill) must be 0.
template <typename Fn>
inline float Reduce(const float* x, int64_t n, float fill, Fn f) {
  F sums[4] = {Simd::Set(0), Simd::Set(0), Simd::Set(0), Simd::Set(0)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sums[j] = Simd::Add(sums[j], f(Simd::Load(x + i + j * kLanes)));
  }
  for (; i + kLanes <= n; i += kLanes) sums[0] = Simd::Add(sums[0], f(Simd::Load(x + i)));
  if (i < n) sums[1] = Simd::Add(sums[1], f(LoadTail(x + i, n - i, fill)));
  return Simd::Sum(Simd::Add(Simd::Add(sums[0], sums[1]), Simd::Add(sums[2], sums[3])));
}

// ---------------------------------------------------------------------------
// Number by number.

// exp(x) to within 2 units in the last place; 0 below the smallest normal number,
// infinity above 88.37; NaN stays NaN.
inline F Exp(F x) {
  const F clamped = Simd::Min(Simd::Set(88.8F), Simd::Max(Simd::Set(-87.33F), x));
  // n = round(x / ln 2), by adding and taking away 1.5 · 2²³.
  const F magic = Simd::Set(12582912.0F);
  const F n = Simd::Sub(Simd::Fma(clamped, Simd::Set(1.44269504F), magic), magic);
  F r = Simd::Fma(n, Simd::Set(-0.693359375F), clamped);
  r = Simd::Fma(n, Simd::Set(2.12194440e-4F), r);
  // The Taylor series: |r| ≤ ln 2 / 2.
  F sum = Simd::Set(1.0F / 5040);
  constexpr float kFactors[] = {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 1.0F / 2, 1.0F, 1.0F};
  for (const float factor : kFactors) sum = Simd::Fma(sum, r, Simd::Set(factor));
  return Simd::ZeroBelow(x, -87.33F, Simd::TimesPowerOfTwo(sum, n));
}

inline F Sigmoid(F x) { return Simd::Div(Simd::Set(1), Simd::Add(Simd::Set(1), Exp(Simd::Sub(Simd::Set(0), x)))); }

// (1 + erf(x / √2)) / 2, by formula 7.1.26 of Abramowitz and Stegun: within 1e-7.
inline F NormalCdf(F x) {
  const F z = Simd::Mul(Simd::Max(x, Simd::Sub(Simd::Set(0), x)), Simd::Set(0.707106781F));
  const F t = Simd::Div(Simd::Set(1), Simd::Fma(z, Simd::Set(0.3275911F), Simd::Set(1)));
  F sum = Simd::Set(1.061405429F);
  constexpr float kFactors[] = {-1.453152027F, 1.421413741F, -0.284496736F, 0.254829592F};
  for (const float factor : kFactors) sum = Simd::Fma(sum, t, Simd::Set(factor));
  const F tail =
      Simd::Mul(Simd::Mul(Simd::Mul(sum, t), Simd::Set(0.5F)), Exp(Simd::Sub(Simd::Set(0), Simd::Mul(z, z))));
  return Simd::IfNegative(x, tail, Simd::Sub(Simd::Set(1), tail));
}

inline F GeluTanh(F x) {
  // tanh u = 2 sigmoid(2u) − 1.
  const F cube = Simd::Mul(Simd::Mul(x, x), x);
  const F u = Simd::Mul(Simd::Set(0.797884561F), Simd::Fma(cube, Simd::Set(0.044715F), x));
  return Simd::Mul(x, Sigmoid(Simd::Add(u, u)));
}

void MapGeluTanh(const float* x, int64_t n, float* y) {
  Map(x, n, y, [](F v) { return GeluTanh(v); });
}

void MapGeluErf(const float* x, int64_t n, float* y) {
  Map(x, n, y, [](F v) { return Simd::Mul(v, NormalCdf(v)); });
}

void MapRelu(const float* x, int64_t n, float* y) {
  Map(x, n, y, [](F v) { return Simd::Max(Simd::Set(0), v); });
}

void MapSilu(const float* x, int64_t n, float* y) {
  Map(x, n, y, [](F v) { return Simd::Mul(v, Sigmoid(v)); });
}

// y = f(a, b), number by number.
template <typename Fn>
inline void Map2(const float* a, const float* b, int64_t n, float* y, Fn f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Simd::Store(f(Simd::Load(a + i), Simd::Load(b + i)), y + i);
  if (i < n) StoreTail(f(LoadTail(a + i, n - i, 0), LoadTail(b + i, n - i, 0)), n - i, y + i);
}

void Multiply(const float* a, const float* b, int64_t n, float* y) {
  Map2(a, b, n, y, [](F u, F v) { return Simd::Mul(u, v); });
}

void Scale(float* x, float scale, int64_t n) {
  Map(x, n, x, [scale](F v) { return Simd::Mul(v, Simd::Set(scale)); });
}

// ---------------------------------------------------------------------------
// Row by row.

void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y) {
  const float mean = Reduce(x, n, 0, [](F v) { return v; }) / static_cast<float>(n);
  const F center = Simd::Set(mean);
  const float squares = Reduce(x, n, mean, [center](F v) {
    const F d = Simd::Sub(v, center);
    return Simd::Mul(d, d);
  });
  const F inverse = Simd::Set(1 / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  const auto normalized = [&](F v, F w, F b) { return Simd::Fma(Simd::Mul(Simd::Sub(v, center), inverse), w, b); };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Simd::Store(normalized(Simd::Load(x + i), Simd::Load(weight + i), Simd::Load(bias + i)), y + i);
  }
  if (i < n) {
    StoreTail(normalized(LoadTail(x + i, n - i, 0), LoadTail(weight + i, n - i, 0), LoadTail(bias + i, n - i, 0)),
              n - i, y + i);
  }
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const float squares = Reduce(x, n, 0, [](F v) { return Simd::Mul(v, v); });
  const F inverse = Simd::Set(1 / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  Map2(x, weight, n, y, [inverse](F v, F w) { return Simd::Mul(Simd::Mul(v, inverse), w); });
}

// Σ f(x, y).  f(0, 0) must be 0.
template <typename Fn>
inline float Reduce2(const float* x, const float* y, int64_t n, Fn f) {
  F sums[4] = {Simd::Set(0), Simd::Set(0), Simd::Set(0), Simd::Set(0)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      sums[j] = f(Simd::Load(x + i + j * kLanes), Simd::Load(y + i + j * kLanes), sums[j]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) sums[0] = f(Simd::Load(x + i), Simd::Load(y + i), sums[0]);
  if (i < n) sums[1] = f(LoadTail(x + i, n - i, 0), LoadTail(y + i, n - i, 0), sums[1]);
  return Simd::Sum(Simd::Add(Simd::Add(sums[0], sums[1]), Simd::Add(sums[2], sums[3])));
}

float DotProduct(const float* x, const float* y, int64_t n) {
  return Reduce2(x, y, n, [](F a, F b, F sum) { return Simd::Fma(a, b, sum); });
}

float SquaredDistance(const float* x, const float* y, int64_t n) {
  return Reduce2(x, y, n, [](F a, F b, F sum) {
    const F d = Simd::Sub(a, b);
    return Simd::Fma(d, d, sum);
  });
}

// ---------------------------------------------------------------------------
// Softmax and attention.

float Max(const float* x, int64_t n) {
  float max = -__builtin_inff();
  F highest = Simd::Set(max);
  F faults = Simd::Set(0);
  int64_t i = 0;
  const auto take = [&](F v) {
    highest = Simd::Max(highest, v);
    faults = Simd::OrNan(faults, v);
  };
  for (; i + kLanes <= n; i += kLanes) take(Simd::Load(x + i));
  if (i < n) take(LoadTail(x + i, n - i, max));
  float lanes[kLanes];
  Simd::Store(faults, lanes);
  for (const float fault : lanes) {
    if (fault != fault) return fault;
  }
  Simd::Store(highest, lanes);
  for (const float lane : lanes) max = lane > max ? lane : max;
  return max;
}

// Blocks of this many terms are summed as floats, the blocks as doubles.
constexpr int64_t kSumBlock = 512;

template <bool kStore>
inline double SumExpShifted(const float* x, float max, float scale, int64_t n, float* y) {
  const F shift = Simd::Set(max);
  const F factor = Simd::Set(scale);
  double total = 0;
  for (int64_t first = 0; first < n; first += kSumBlock) {
    const int64_t last = first + kSumBlock < n ? first + kSumBlock : n;
    F sum = Simd::Set(0);
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) {
      const F e = Exp(Simd::Mul(Simd::Sub(Simd::Load(x + i), shift), factor));
      if constexpr (kStore) Simd::Store(e, y + i);
      sum = Simd::Add(sum, e);
    }
    if (i < last) {
      const F e = Exp(Simd::Mul(Simd::Sub(LoadTail(x + i, last - i, -__builtin_inff()), shift), factor));
      if constexpr (kStore) StoreTail(e, last - i, y + i);
      sum = Simd::Add(sum, e);
    }
    total += Simd::Sum(sum);
  }
  return total;
}

double ExpShifted(const float* x, float max, float scale, int64_t n, float* y) {
  return SumExpShifted<true>(x, max, scale, n, y);
}

double SumExp(const float* x, float max, int64_t n) { return SumExpShifted<false>(x, max, 1, n, nullptr); }

inline F LoadAny(const float* x) { return Simd::Load(x); }
inline F LoadAny(const uint16_t* x) { return Simd::LoadBf16(x); }
inline float ReadAny(const float* x) { return *x; }
inline float ReadAny(const uint16_t* x) { return WidenBf16(*x); }

// kVectors vectors of one row of the output; even and odd positions have accumulators of
// their own, to hide the latency of the sums.
template <int kVectors, typename T>
inline void AddWeightedBlock(const float* p, const T* v, int64_t n, int64_t width, float* out) {
  F even[kVectors];
  F odd[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    even[j] = Simd::Load(out + j * kLanes);
    odd[j] = Simd::Set(0);
  }
  int64_t t = 0;
  for (; t + 2 <= n; t += 2) {
    const F p0 = Simd::Set(p[t]);
    const F p1 = Simd::Set(p[t + 1]);
    for (int j = 0; j < kVectors; ++j) {
      even[j] = Simd::Fma(p0, LoadAny(v + t * width + j * kLanes), even[j]);
      odd[j] = Simd::Fma(p1, LoadAny(v + (t + 1) * width + j * kLanes), odd[j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    if (t < n) even[j] = Simd::Fma(Simd::Set(p[t]), LoadAny(v + t * width + j * kLanes), even[j]);
    Simd::Store(Simd::Add(even[j], odd[j]), out + j * kLanes);
  }
}

template <typename T>
void AddWeighted(const float* p, const T* v, int64_t n, int64_t width, float* out) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= width; j += 4 * kLanes) AddWeightedBlock<4>(p, v + j, n, width, out + j);
  for (; j + kLanes <= width; j += kLanes) AddWeightedBlock<1>(p, v + j, n, width, out + j);
  for (; j < width; ++j) {
    float sum = out[j];
    for (int64_t t = 0; t < n; ++t) sum += p[t] * ReadAny(v + t * width + j);
    out[j] = sum;
  }
}

void Rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * cos[i] - high * sin[i];
    x[half + i] = high * cos[i] + low * sin[i];
  }
}

template <typename StagedDot>
constexpr CpuOps MakeOps() {
  return {
      .product_f32 = ProductOfFloats<F32Dot>,
      .product_bf16 = ProductOfFloats<Bf16Dot>,
      .product_staged = Product<StagedDot>,
      .stage = StagedDot::Stage,
      .staged_bytes = sizeof(typename StagedDot::X),
      .to_bf16 = ToBf16,
      .from_bf16 = FromBf16,
      .layer_norm = LayerNorm,
      .rms_norm = RmsNorm,
      .gelu_tanh = MapGeluTanh,
      .gelu_erf = MapGeluErf,
      .relu = MapRelu,
      .silu = MapSilu,
      .multiply = Multiply,
      .dot = DotProduct,
      .squared_distance = SquaredDistance,
      .max = Max,
      .exp_shifted = ExpShifted,
      .sum_exp = SumExp,
      .add_weighted_f32 = AddWeighted<float>,
      .add_weighted_bf16 = AddWeighted<uint16_t>,
      .rotate = Rotate,
      .scale = Scale,
  };
}

}  // namespace
}  // namespace gatehouse
