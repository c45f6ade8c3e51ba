// The products of CpuOps, and bfloat16.  A part of cpu_ops_impl.h, which alone includes it and
// says what may stand here.

#include <cstdint>

namespace gatehouse {
namespace {

constexpr int kLanes = Simd::kLanes;
using F = Simd::F;

struct F32Dot {
  using W = float;
  using X = float;
  using WV = F;
  static constexpr int kStep = kLanes;
  static WV LoadW(const W* w) { return Simd::Load(w); }
  static F Mac(F sum, WV w, const X* x) { return Simd::Fma(w, Simd::Load(x), sum); }
};

struct Bf16Dot {
  using W = uint16_t;
  using X = float;
  using WV = F;
  static constexpr int kStep = kLanes;
  static WV LoadW(const W* w) { return Simd::LoadBf16(w); }
  static F Mac(F sum, WV w, const X* x) { return Simd::Fma(w, Simd::Load(x), sum); }
};

// How far ahead weights are called into the second-level cache, which can have more
// reads under way than the first.
constexpr int64_t kPrefetchBytes = 16 << 10;

// kOutputs rows of w by kRows rows of x.  One accumulator for each pair, so the order of
// its sum does not depend on the shape of the tile.
template <typename Dot, int kOutputs, int kRows>
inline void Tile(const typename Dot::W* w, int64_t k, const typename Dot::X* x, int64_t x_stride, const float* bias,
                 float* y, int64_t y_stride) {
  using W = typename Dot::W;
  using X = typename Dot::X;
  F sums[kRows][kOutputs];
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) sums[r][o] = Simd::Set(0);
  }
  typename Dot::WV weights[kOutputs];
  int64_t i = 0;
  for (; i + Dot::kStep <= k; i += Dot::kStep) {
    for (int o = 0; o < kOutputs; ++o) {
      weights[o] = Dot::LoadW(w + o * k + i);
      if (Dot::kStep * sizeof(W) == 64 || i * sizeof(W) % 64 == 0) {
        __builtin_prefetch(w + o * k + i + kPrefetchBytes / sizeof(W), /*rw=*/0, /*locality=*/2);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int o = 0; o < kOutputs; ++o) sums[r][o] = Dot::Mac(sums[r][o], weights[o], x + r * x_stride + i);
    }
  }
  if (i < k) {
    for (int o = 0; o < kOutputs; ++o) {
      W tail[Dot::kStep] = {};
      __builtin_memcpy(tail, w + o * k + i, (k - i) * sizeof(W));
      weights[o] = Dot::LoadW(tail);
    }
    for (int r = 0; r < kRows; ++r) {
      X tail[Dot::kStep] = {};
      __builtin_memcpy(tail, x + r * x_stride + i, (k - i) * sizeof(X));
      for (int o = 0; o < kOutputs; ++o) sums[r][o] = Dot::Mac(sums[r][o], weights[o], tail);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = y + r * y_stride;
    int o = 0;
    for (; o + 4 <= kOutputs; o += 4) {
      Simd::Sum4(sums[r][o], sums[r][o + 1], sums[r][o + 2], sums[r][o + 3], out + o);
    }
    for (; o < kOutputs; ++o) out[o] = Simd::Sum(sums[r][o]);
    if (bias != nullptr) {
      for (o = 0; o < kOutputs; ++o) out[o] += bias[o];
    }
  }
}

template <typename Dot, int kRows>
void ProductOfRows(const typename Dot::W* w, int64_t k, int64_t outputs, const typename Dot::X* x, int64_t x_stride,
                   const float* bias, float* y, int64_t y_stride) {
  constexpr int kOutputs = Simd::TileOutputs(kRows);
  int64_t o = 0;
  for (; o + kOutputs <= outputs; o += kOutputs) {
    Tile<Dot, kOutputs, kRows>(w + o * k, k, x, x_stride, bias == nullptr ? nullptr : bias + o, y + o, y_stride);
  }
  for (; o < outputs; ++o) {
    Tile<Dot, 1, kRows>(w + o * k, k, x, x_stride, bias == nullptr ? nullptr : bias + o, y + o, y_stride);
  }
}

template <typename Dot>
void Product(const typename Dot::W* w, int64_t k, int64_t outputs, const void* inputs, int64_t x_stride, int64_t rows,
             const float* bias, float* y, int64_t y_stride) {
  const auto* x = static_cast<const typename Dot::X*>(inputs);
  for (int64_t row = 0; row < rows; row += Simd::kMaxTileRows) {
    const int64_t count = rows - row < Simd::kMaxTileRows ? rows - row : Simd::kMaxTileRows;
    const auto run = [&]<int kRows>() {
      if constexpr (kRows <= Simd::kMaxTileRows) {
        ProductOfRows<Dot, kRows>(w, k, outputs, x + row * x_stride, x_stride, bias, y + row * y_stride, y_stride);
      }
    };
    switch (count) {
      case 1:
        run.template operator()<1>();
        break;
      case 2:
        run.template operator()<2>();
        break;
      case 3:
        run.template operator()<3>();
        break;
      case 4:
        run.template operator()<4>();
        break;
      case 5:
        run.template operator()<5>();
        break;
      case 6:
        run.template operator()<6>();
        break;
      case 7:
        run.template operator()<7>();
        break;
      default:
        run.template operator()<8>();
        break;
    }
  }
}

template <typename Dot>
void ProductOfFloats(const typename Dot::W* w, int64_t k, int64_t outputs, const float* x, int64_t x_stride,
                     int64_t rows, const float* bias, float* y, int64_t y_stride) {
  Product<Dot>(w, k, outputs, x, x_stride, rows, bias, y, y_stride);
}

// ---------------------------------------------------------------------------
// bfloat16.

inline uint16_t RoundToBf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float WidenBf16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float wide;
  __builtin_memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

void ToBf16(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = RoundToBf16(x[i]);
}

void FromBf16(const uint16_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = WidenBf16(x[i]);
}

// The product of staged inputs for sets without a bfloat16 product: inputs are rounded,
// but kept as floats.
struct Bf16DotOfFloats : Bf16Dot {
  static void Stage(const float* x, int64_t n, void* staged) {
    auto* y = static_cast<float*>(staged);
    for (int64_t i = 0; i < n; ++i) y[i] = WidenBf16(RoundToBf16(x[i]));
  }
};

}  // namespace
}  // namespace gatehouse
