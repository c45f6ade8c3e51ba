#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_OPS_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_OPS_H_

#include <cstdint>

namespace gatehouse {

// The inner loops of the CPU kernels, written once (cpu_ops_impl.h) and compiled once
// for each instruction set; one table each.  Single-threaded, on raw memory.
//
// Every result is a function of its own row alone: the order of each sum depends on the
// length summed over and on nothing else.  bfloat16 numbers are their bits (uint16_t).
struct CpuOps {
  // y[r, o] = Σᵢ x[r, i] w[o, i] + bias[o] for r < rows, o < outputs.  w: [outputs, k]
  // row-major; x: rows x_stride apart; y: rows y_stride apart; bias may be null.
  void (*product_f32)(const float* w, int64_t k, int64_t outputs, const float* x, int64_t x_stride, int64_t rows,
                      const float* bias, float* y, int64_t y_stride);
  // The same with bfloat16 weights, exact in the products.
  void (*product_bf16)(const uint16_t* w, int64_t k, int64_t outputs, const float* x, int64_t x_stride, int64_t rows,
                       const float* bias, float* y, int64_t y_stride);
  // The same with inputs rounded to bfloat16 by `stage`, strides in its elements.
  void (*product_staged)(const uint16_t* w, int64_t k, int64_t outputs, const void* x, int64_t x_stride, int64_t rows,
                         const float* bias, float* y, int64_t y_stride);
  // Rounds n numbers to bfloat16, as product_staged wants them.
  void (*stage)(const float* x, int64_t n, void* staged);
  int64_t staged_bytes;  // of one number

  void (*to_bf16)(const float* x, int64_t n, uint16_t* y);  // to nearest even
  void (*from_bf16)(const uint16_t* x, int64_t n, float* y);

  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t n, float* y);
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  // y = f(x); y may be x.
  void (*gelu_tanh)(const float* x, int64_t n, float* y);
  void (*gelu_erf)(const float* x, int64_t n, float* y);
  void (*relu)(const float* x, int64_t n, float* y);
  void (*silu)(const float* x, int64_t n, float* y);
  void (*multiply)(const float* a, const float* b, int64_t n, float* y);
  float (*dot)(const float* x, const float* y, int64_t n);
  float (*squared_distance)(const float* x, const float* y, int64_t n);

  // NaN where x holds one.
  float (*max)(const float* x, int64_t n);
  // y = exp((x − max) · scale); returns Σ y.  y may be x.
  double (*exp_shifted)(const float* x, float max, float scale, int64_t n, float* y);
  // Σ exp(x − max).
  double (*sum_exp)(const float* x, float max, int64_t n);
  // out[j] += Σₜ p[t] v[t, j] for j < width.  v: [n, width].
  void (*add_weighted_f32)(const float* p, const float* v, int64_t n, int64_t width, float* out);
  void (*add_weighted_bf16)(const float* p, const uint16_t* v, int64_t n, int64_t width, float* out);
  // Turns the pairs (x[i], x[i + half]), i < half, by the angles whose cosines and sines
  // are given.
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
  // x *= scale.
  void (*scale)(float* x, float scale, int64_t n);
};

const CpuOps& GenericCpuOps();
const CpuOps& Avx2CpuOps();
const CpuOps& Avx512CpuOps();
const CpuOps& Avx512Bf16CpuOps();

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_OPS_H_
