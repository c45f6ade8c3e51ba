#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "server/engine/kernels/kernels.h"
#include "server/engine/kernels/portable_sampling.h"

namespace gatehouse {
namespace {

// Rows a skinny product takes at once on a GPU.  Always this many, so that the library
// chooses the same kernel and a row's bits do not depend on its neighbours.
constexpr int64_t kSkinnyBlock = 32;

// Positions of a chunk that attend at once: bounds the memory for scores.
constexpr int kPortableQueryBlock = 128;

std::vector<float> ToHost(const at::Tensor& values) {
  const at::Tensor host = values.to(at::kFloat).cpu().contiguous();
  const float* data = host.const_data_ptr<float>();
  return {data, data + host.numel()};
}

void ApplyActivation(at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      at::gelu_(x, "tanh");
      return;
    case Activation::kGeluErf:
      at::gelu_(x, "none");
      return;
    case Activation::kRelu:
      at::relu_(x);
      return;
    case Activation::kSilu:
      at::silu_(x);
      return;
  }
}

// See MakePortableKernels.
class PortableKernels final : public Kernels {
 public:
  PortableKernels(at::Device device, at::ScalarType dtype) : device_(device), dtype_(dtype) {}

  std::string_view name() const override { return "portable"; }

  at::Tensor Linear(const at::Tensor& x, const LinearWeights& weights, RowGroup group) override {
    at::Tensor y = device_.is_cpu() ? ProductOnCpu(x, weights.weight, group) : Product(x, weights.weight, group);
    if (weights.bias.defined()) y += weights.bias;
    return y;
  }

  at::Tensor Norm(const at::Tensor& x, const NormWeights& weights, NormKind kind, double eps) override {
    if (kind == NormKind::kLayerNorm) return at::layer_norm(x, {x.size(1)}, weights.weight, weights.bias, eps);
    return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weights.weight;
  }

  void Activate(at::Tensor& x, Activation activation) override {
    if (!device_.is_cpu()) return ApplyActivation(x, activation);
    // Row by row: the last numbers of what it is given take another path there.
    for (int64_t row = 0; row < x.size(0); ++row) {
      at::Tensor values = x.select(0, row);
      ApplyActivation(values, activation);
    }
  }

  at::Tensor GatedActivate(const at::Tensor& x, Activation activation, at::Tensor* gate_out) override {
    const int64_t width = x.size(1) / 2;
    at::Tensor gate = x.narrow(1, 0, width).clone(at::MemoryFormat::Contiguous);
    Activate(gate, activation);
    if (gate_out != nullptr) *gate_out = gate;
    return gate * x.narrow(1, width, width);
  }

  at::Tensor Embed(const at::Tensor& table, std::span<const int32_t> ids) override {
    return table.index_select(0, ToDevice(std::vector<int64_t>(ids.begin(), ids.end()))).to(at::kFloat);
  }

  at::Tensor Attention(at::Tensor& qkv, const ModelConfig& config, int layer, KvLayer& kv,
                       std::span<const Segment> segments, RowGroup group) override {
    at::Tensor out = at::empty({qkv.size(0), int64_t{config.heads} * config.head_dim}, qkv.options());
    for (const Segment& segment : segments) {
      at::Tensor rows = qkv.narrow(0, segment.first_row, segment.rows);
      if (config.rotary_dims > 0) Rotate(rows, config, segment.first_position);
      WriteKv(rows, config, segment, kv);
      out.narrow(0, segment.first_row, segment.rows)
          .copy_(AttendSegment(rows, config, segment, kv, config.AttentionScale(layer), group));
    }
    return out;
  }

  std::vector<float> Dot(const at::Tensor& x, const at::Tensor& w, float bias) override {
    return ToHost((x * w).sum(-1) + bias);
  }

  std::vector<float> RowNorms(const at::Tensor& x, const at::Tensor* y) override {
    return ToHost(at::linalg_vector_norm(y == nullptr ? x : x - *y, 2, at::IntArrayRef{1}));
  }

  absl::StatusOr<SampledToken> Sample(const at::Tensor& logits, SamplingState& state, int top) override {
    return PortableSample(logits, state, top);
  }

  absl::StatusOr<TargetLogprobs> Logprobs(const at::Tensor& logits, std::span<const int32_t> targets,
                                          int top) override {
    return PortableLogprobs(logits, targets, top);
  }

 private:
  // Exact products of the rounded inputs, whatever the CPU.
  at::Tensor ProductOnCpu(const at::Tensor& x, const at::Tensor& weight, RowGroup group) const {
    const at::Tensor inputs = x.to(dtype_).to(at::kFloat);
    const at::Tensor transposed = weight.to(at::kFloat).t();
    if (group == RowGroup::kWide || x.size(0) <= 1) return at::mm(inputs, transposed);
    at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
    for (int64_t row = 0; row < x.size(0); ++row)
      y.narrow(0, row, 1).copy_(at::mm(inputs.narrow(0, row, 1), transposed));
    return y;
  }

  at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, RowGroup group) const {
    const at::Tensor inputs = x.to(dtype_);
    const at::Tensor transposed = weight.t();
    if (group == RowGroup::kWide) return Multiply(inputs, transposed);
    at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
    for (int64_t row = 0; row < x.size(0); row += kSkinnyBlock) {
      const int64_t count = std::min(kSkinnyBlock, x.size(0) - row);
      const at::Tensor block = at::constant_pad_nd(inputs.narrow(0, row, count), {0, 0, 0, kSkinnyBlock - count});
      y.narrow(0, row, count).copy_(Multiply(block, transposed).narrow(0, 0, count));
    }
    return y;
  }

  at::Tensor Multiply(const at::Tensor& x, const at::Tensor& transposed) const {
    return dtype_ == at::kFloat ? at::mm(x, transposed) : at::mm(x, transposed, at::kFloat);
  }

  at::Tensor ToDevice(const std::vector<int64_t>& values) const { return at::tensor(values, at::kLong).to(device_); }

  at::Tensor Positions(int first, int count) const {
    return at::arange(first, first + count, at::TensorOptions().dtype(at::kLong).device(device_));
  }

  // Turns the query and key heads of consecutive positions, in place.
  // rows: [n, (heads + 2 kv_heads) · head_dim].
  void Rotate(at::Tensor& rows, const ModelConfig& config, int first_position) const {
    const int64_t half = config.rotary_dims / 2;
    const at::Tensor inv_freq =
        at::tensor(at::ArrayRef<float>(config.inv_freq.data(), config.inv_freq.size()), at::kFloat).to(device_);
    const at::Tensor angles =
        (Positions(first_position, rows.size(0)).to(at::kFloat).unsqueeze(1) * inv_freq).unsqueeze(1);  // [n, 1, half]
    const at::Tensor cos = angles.cos();
    const at::Tensor sin = angles.sin();
    const at::Tensor heads =
        rows.view({rows.size(0), -1, config.head_dim}).narrow(1, 0, config.heads + config.kv_heads);
    at::Tensor low = heads.narrow(2, 0, half);
    at::Tensor high = heads.narrow(2, half, half);
    const at::Tensor turned = low * cos - high * sin;
    high.copy_(high * cos + low * sin);
    low.copy_(turned);
  }

  void WriteKv(const at::Tensor& rows, const ModelConfig& config, const Segment& segment, KvLayer& kv) const {
    const int64_t page_tokens = kv.keys.size(2);
    std::vector<int64_t> pages(segment.rows);
    std::vector<int64_t> slots(segment.rows);
    for (int row = 0; row < segment.rows; ++row) {
      const int position = segment.first_position + row;
      pages[row] = segment.pages[position / page_tokens];
      slots[row] = position % page_tokens;
    }
    const c10::List<std::optional<at::Tensor>> where({ToDevice(pages), ToDevice(slots)});
    const at::Tensor heads = rows.view({rows.size(0), -1, config.head_dim});
    // As [pages, page_tokens, kv_heads, head_dim].
    kv.keys.transpose(1, 2).index_put_(where, heads.narrow(1, config.heads, config.kv_heads).to(dtype_));
    kv.values.transpose(1, 2).index_put_(where,
                                         heads.narrow(1, config.heads + config.kv_heads, config.kv_heads).to(dtype_));
  }

  // The first `length` positions of a sequence, from its pages → [kv_heads, length, head_dim] float32.
  at::Tensor Gather(const at::Tensor& pages, const Segment& segment, int64_t length) const {
    const int64_t page_tokens = pages.size(2);
    const auto used = segment.pages.first((length + page_tokens - 1) / page_tokens);
    return pages.index_select(0, ToDevice(std::vector<int64_t>(used.begin(), used.end())))
        .transpose(0, 1)
        .reshape({pages.size(1), -1, pages.size(3)})
        .narrow(1, 0, length)
        .to(at::kFloat);
  }

  // rows: [n, (heads + 2 kv_heads) · head_dim] → [n, heads · head_dim].
  at::Tensor AttendSegment(const at::Tensor& rows, const ModelConfig& config, const Segment& segment, const KvLayer& kv,
                           double scale, RowGroup group) const {
    const int length = segment.first_position + segment.rows;
    const at::Tensor keys = Gather(kv.keys, segment, length);
    const at::Tensor values = Gather(kv.values, segment, length);
    const at::Tensor queries = rows.narrow(1, 0, int64_t{config.heads} * config.head_dim);
    // One position at a time where a row's bits may not depend on its neighbours.
    const int block = group == RowGroup::kSkinny ? 1 : kPortableQueryBlock;
    std::vector<at::Tensor> blocks;
    for (int first = 0; first < segment.rows; first += block) {
      const int count = std::min(block, segment.rows - first);
      const int visible = segment.first_position + first + count;
      blocks.push_back(AttendBlock(queries.narrow(0, first, count), keys.narrow(1, 0, visible),
                                   values.narrow(1, 0, visible), scale));
    }
    return at::cat(blocks);
  }

  // Queries of the last n of `visible` positions.  queries: [n, heads · head_dim], keys and
  // values: [kv_heads, visible, head_dim] → [n, heads · head_dim].
  at::Tensor AttendBlock(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                         double scale) const {
    const int64_t n = queries.size(0);
    const int64_t kv_heads = keys.size(0);
    const int64_t visible = keys.size(1);
    const int64_t head_dim = keys.size(2);
    const at::Tensor grouped =
        queries.reshape({n, kv_heads, -1, head_dim}).permute({1, 2, 0, 3}).reshape({kv_heads, -1, head_dim});
    at::Tensor scores = at::bmm(grouped, keys.transpose(1, 2)).mul_(scale).view({kv_heads, -1, n, visible});
    if (n > 1) {
      const at::Tensor later = Positions(0, visible) > Positions(visible - n, n).unsqueeze(1);  // [n, visible]
      scores.masked_fill_(later, -std::numeric_limits<float>::infinity());
    }
    const at::Tensor weights = at::softmax(scores, -1).view({kv_heads, -1, visible});
    return at::bmm(weights, values).view({kv_heads, -1, n, head_dim}).permute({2, 0, 1, 3}).reshape({n, -1});
  }

  at::Device device_;
  at::ScalarType dtype_;
};

}  // namespace

std::unique_ptr<Kernels> MakePortableKernels(at::Device device, at::ScalarType dtype) {
  return std::make_unique<PortableKernels>(device, dtype);
}

}  // namespace gatehouse
