#include "server/engine/kernels/cpu_kernels.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "server/engine/kernels/cpu_attention.h"
#include "server/engine/kernels/cpu_sampling.h"
#include "server/engine/model/library_product.h"

namespace gatehouse {
namespace {

// Up to this many rows of one sequence our product is the faster one.
constexpr int64_t kMaxSkinnyRows = 16;

// A piece of a skinny product reads about this much of the weights: enough to be worth
// claiming, and small enough to stay in the second-level cache over all rows.
constexpr int64_t kPieceBytes = 256 << 10;

// Numbers that an operation on each of them takes at once, and below twice of which
// threads do not pay.
constexpr int64_t kPieceNumbers = 16 << 10;

// Numbers between the staged rows of a product.
constexpr int64_t kStagedPadding = 96;

const float* Floats(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "kernels want contiguous tensors");
  return tensor.const_data_ptr<float>();
}

float* MutableFloats(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "kernels want contiguous tensors");
  return tensor.mutable_data_ptr<float>();
}

// See MakeCpuKernels.
class CpuKernels final : public Kernels {
 public:
  CpuKernels(const InstructionSet& set, at::ScalarType dtype, WorkerPool& pool)
      : name_(set.name), ops_(set.ops()), dtype_(dtype), pool_(pool), attention_(ops_, pool, dtype), sampler_(ops_) {}

  std::string_view name() const override { return name_; }

  at::Tensor Linear(const at::Tensor& x, const LinearWeights& weights, RowGroup group) override {
    if (group == RowGroup::kWide && x.size(0) > kMaxSkinnyRows) return WideProduct(x, weights);
    return SkinnyProduct(x, weights);
  }

  at::Tensor Norm(const at::Tensor& x, const NormWeights& weights, NormKind kind, double eps) override {
    at::Tensor y = at::empty_like(x);
    const float* weight = Floats(weights.weight);
    const float* bias = kind == NormKind::kLayerNorm ? Floats(weights.bias) : nullptr;
    const int64_t width = x.size(1);
    const float* in = Floats(x);
    float* out = MutableFloats(y);
    ForRows(x, [&](int64_t row) {
      if (kind == NormKind::kLayerNorm) {
        ops_.layer_norm(in + row * width, weight, bias, static_cast<float>(eps), width, out + row * width);
      } else {
        ops_.rms_norm(in + row * width, weight, static_cast<float>(eps), width, out + row * width);
      }
    });
    return y;
  }

  void Activate(at::Tensor& x, Activation activation) override {
    float* values = MutableFloats(x);
    const int64_t width = x.size(1);
    const auto apply = ActivationOp(activation);
    ForRows(x, [&](int64_t row) { apply(values + row * width, width, values + row * width); });
  }

  at::Tensor GatedActivate(const at::Tensor& x, Activation activation, at::Tensor* gate_out) override {
    const int64_t width = x.size(1) / 2;
    at::Tensor y = at::empty({x.size(0), width}, x.options());
    if (gate_out != nullptr) *gate_out = at::empty_like(y);
    const float* in = Floats(x);
    float* out = MutableFloats(y);
    float* gates = gate_out != nullptr ? MutableFloats(*gate_out) : out;
    const auto apply = ActivationOp(activation);
    ForRows(x, [&](int64_t row) {
      const float* gate = in + row * 2 * width;
      apply(gate, width, gates + row * width);
      ops_.multiply(gates + row * width, gate + width, width, out + row * width);
    });
    return y;
  }

  at::Tensor Embed(const at::Tensor& table, std::span<const int32_t> ids) override {
    TORCH_CHECK(table.is_contiguous() && table.scalar_type() == dtype_, "the table is not in the serving dtype");
    const int64_t width = table.size(1);
    at::Tensor y = at::empty({static_cast<int64_t>(ids.size()), width}, table.options().dtype(at::kFloat));
    float* out = MutableFloats(y);
    for (const int32_t id : ids) {
      TORCH_CHECK_INDEX(id >= 0 && id < table.size(0), "row ", id, " of a table of ", table.size(0));
      if (dtype_ == at::kFloat) {
        std::copy_n(table.const_data_ptr<float>() + id * width, width, out);
      } else {
        ops_.from_bf16(Bf16Bits(table) + id * width, width, out);
      }
      out += width;
    }
    return y;
  }

  at::Tensor Attention(at::Tensor& qkv, const ModelConfig& config, int layer, KvLayer& kv,
                       std::span<const Segment> segments, RowGroup group) override {
    MutableFloats(qkv);  // contiguous
    return attention_.Run(qkv, config, layer, kv, segments, group);
  }

  std::vector<float> Dot(const at::Tensor& x, const at::Tensor& w, float bias) override {
    const int64_t width = x.size(1);
    const float* in = Floats(x);
    const float* weights = Floats(w);
    std::vector<float> dots(x.size(0));
    ForRows(x, [&](int64_t row) { dots[row] = ops_.dot(in + row * width, weights, width) + bias; });
    return dots;
  }

  std::vector<float> RowNorms(const at::Tensor& x, const at::Tensor* y) override {
    const int64_t width = x.size(1);
    const float* a = Floats(x);
    const float* b = y != nullptr ? Floats(*y) : nullptr;
    std::vector<float> norms(x.size(0));
    ForRows(x, [&](int64_t row) {
      const float* at = a + row * width;
      norms[row] =
          std::sqrt(b == nullptr ? ops_.dot(at, at, width) : ops_.squared_distance(at, b + row * width, width));
    });
    return norms;
  }

  absl::StatusOr<SampledToken> Sample(const at::Tensor& logits, SamplingState& state, int top) override {
    return sampler_.Sample({Floats(logits), static_cast<size_t>(logits.numel())}, state, top);
  }

  absl::StatusOr<TargetLogprobs> Logprobs(const at::Tensor& logits, std::span<const int32_t> targets,
                                          int top) override {
    return sampler_.Logprobs(Floats(logits), logits.size(1), targets, top, pool_);
  }

 private:
  using Unary = void (*)(const float*, int64_t, float*);

  static const uint16_t* Bf16Bits(const at::Tensor& tensor) {
    return reinterpret_cast<const uint16_t*>(tensor.const_data_ptr<at::BFloat16>());
  }

  Unary ActivationOp(Activation activation) const {
    switch (activation) {
      case Activation::kGeluTanh:
        return ops_.gelu_tanh;
      case Activation::kGeluErf:
        return ops_.gelu_erf;
      case Activation::kRelu:
        return ops_.relu;
      case Activation::kSilu:
        return ops_.silu;
    }
    return ops_.relu;
  }

  // Runs body(row) for each row of x, on several threads where there is much to do.
  template <typename Body>
  void ForRows(const at::Tensor& x, Body body) {
    const int64_t rows = x.size(0);
    const int64_t per_piece = std::max<int64_t>(1, kPieceNumbers / std::max<int64_t>(1, x.size(1)));
    const int pieces = x.numel() < 2 * kPieceNumbers ? 1 : static_cast<int>((rows + per_piece - 1) / per_piece);
    pool_.Run(pieces, [&](int piece, int) {
      const int64_t first = pieces == 1 ? 0 : piece * per_piece;
      const int64_t last = pieces == 1 ? rows : std::min(rows, first + per_piece);
      for (int64_t row = first; row < last; ++row) body(row);
    });
  }

  at::Tensor WideProduct(const at::Tensor& x, const LinearWeights& weights) const {
    if (dtype_ == at::kFloat) return LibraryProduct(x, weights);
    const at::Tensor y = at::linear(x.to(dtype_), weights.weight);
    return weights.bias.defined() ? at::add(y, weights.bias) : y.to(at::kFloat);
  }

  at::Tensor SkinnyProduct(const at::Tensor& x, const LinearWeights& weights) {
    const at::Tensor& weight = weights.weight;
    TORCH_CHECK(weight.is_contiguous() && weight.scalar_type() == dtype_ && weight.size(1) == x.size(1),
                "weights [out, in] must be contiguous and in the serving dtype");
    const int64_t rows = x.size(0);
    const int64_t k = x.size(1);
    const int64_t outputs = weight.size(0);
    at::Tensor y = at::empty({rows, outputs}, x.options());
    const float* in = Floats(x);
    const float* bias = weights.bias.defined() ? Floats(weights.bias) : nullptr;
    float* out = MutableFloats(y);
    const int64_t stride = Stage(in, rows, k);
    const int64_t row_bytes = k * weight.element_size();
    const int64_t per_piece = std::max<int64_t>(kPieceBytes / std::max<int64_t>(1, row_bytes), 8);
    const int pieces = static_cast<int>((outputs + per_piece - 1) / per_piece);
    pool_.Run(pieces, [&](int piece, int) {
      const int64_t first = piece * per_piece;
      const int64_t count = std::min(per_piece, outputs - first);
      const float* piece_bias = bias == nullptr ? nullptr : bias + first;
      if (dtype_ == at::kFloat) {
        ops_.product_f32(weight.const_data_ptr<float>() + first * k, k, count,
                         reinterpret_cast<const float*>(staged_.data()), stride, rows, piece_bias, out + first,
                         outputs);
      } else {
        ops_.product_staged(Bf16Bits(weight) + first * k, k, count, staged_.data(), stride, rows, piece_bias,
                            out + first, outputs);
      }
    });
    return y;
  }

  // Puts a product's inputs into staged_, rounded as it wants them; returns how far apart
  // the rows are.
  int64_t Stage(const float* x, int64_t rows, int64_t k) {
    // Rows a power of two apart would fall onto the same lines of the cache.
    const int64_t stride = k + kStagedPadding;
    const int64_t bytes = dtype_ == at::kFloat ? static_cast<int64_t>(sizeof(float)) : ops_.staged_bytes;
    staged_.resize(rows * stride * bytes);
    for (int64_t row = 0; row < rows; ++row) {
      std::byte* to = staged_.data() + row * stride * bytes;
      if (dtype_ == at::kFloat) {
        std::memcpy(to, x + row * k, k * sizeof(float));
      } else {
        ops_.stage(x + row * k, k, to);
      }
    }
    return stride;
  }

  const std::string_view name_;
  const CpuOps& ops_;
  const at::ScalarType dtype_;
  WorkerPool& pool_;
  CpuAttention attention_;
  CpuSampler sampler_;
  std::vector<std::byte> staged_;  // inputs of a product, rounded
};

}  // namespace

std::unique_ptr<Kernels> MakeCpuKernels(const InstructionSet& set, at::ScalarType dtype, WorkerPool& pool) {
  return std::make_unique<CpuKernels>(set, dtype, pool);
}

}  // namespace gatehouse
