#include "server/engine/kernels/cpu_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace gatehouse {
namespace {

// Multiplications below which sharing them among threads costs more than it saves.
constexpr int64_t kSmall = 1 << 16;

// Positions of a chunk that attend at once: bounds the memory for the mask.
constexpr int64_t kQueryBlock = 1024;

// The start of a page's rows of one key-value head: [page_tokens, head_dim].
template <typename T>
T* PageRows(const at::Tensor& pages, int32_t page, int kv_head) {
  return static_cast<T*>(pages.data_ptr()) + page * pages.stride(0) + kv_head * pages.stride(1);
}

// The first `length` positions of a sequence, from its pages → [1, kv_heads, length, head_dim].
at::Tensor Gather(const at::Tensor& pages, const Segment& segment, int64_t length) {
  const int64_t page_tokens = pages.size(2);
  const auto used = segment.pages.first((length + page_tokens - 1) / page_tokens);
  const at::Tensor ids = at::tensor(std::vector<int64_t>(used.begin(), used.end()), at::kLong);
  return pages.index_select(0, ids).transpose(0, 1).reshape({1, pages.size(1), -1, pages.size(3)}).narrow(2, 0, length);
}

// One chunk of one sequence, by LibTorch's fused attention.  rows: [n, (heads + 2
// kv_heads) · head_dim] → [n, heads · head_dim] float32.
at::Tensor AttendChunk(const at::Tensor& rows, const ModelConfig& config, double scale, const KvLayer& kv,
                       const Segment& segment) {
  const int64_t n = segment.rows;
  const int64_t width = int64_t{config.heads} * config.head_dim;
  const at::Tensor queries = rows.narrow(1, 0, width)
                                 .view({n, config.heads, config.head_dim})
                                 .transpose(0, 1)
                                 .unsqueeze(0)
                                 .to(kv.keys.scalar_type());
  const at::Tensor keys = Gather(kv.keys, segment, segment.first_position + n);
  const at::Tensor values = Gather(kv.values, segment, segment.first_position + n);
  std::vector<at::Tensor> blocks;
  for (int64_t first = 0; first < n; first += kQueryBlock) {
    const int64_t count = std::min(kQueryBlock, n - first);
    const int64_t visible = segment.first_position + first + count;
    std::optional<at::Tensor> mask;
    if (visible > count) {
      mask = at::full({count, visible}, -std::numeric_limits<float>::infinity(), queries.options())
                 .triu_(visible - count + 1);
    }
    const at::Tensor out = at::scaled_dot_product_attention(
        queries.narrow(2, first, count), keys.narrow(2, 0, visible), values.narrow(2, 0, visible), mask,
        /*dropout_p=*/0.0, /*is_causal=*/!mask.has_value(), scale, /*enable_gqa=*/config.heads != config.kv_heads);
    blocks.push_back(out.squeeze(0).transpose(0, 1).reshape({count, width}));
  }
  return (blocks.size() == 1 ? blocks[0] : at::cat(blocks)).to(at::kFloat);
}

}  // namespace

CpuAttention::CpuAttention(const CpuOps& ops, WorkerPool& pool, at::ScalarType dtype)
    : ops_(ops), pool_(pool), dtype_(dtype), scores_(pool.threads()) {}

at::Tensor CpuAttention::Run(at::Tensor& qkv, const ModelConfig& config, int layer, KvLayer& kv,
                             std::span<const Segment> segments, RowGroup group) {
  std::vector<Query> queries;
  int last_position = 0;
  for (const Segment& segment : segments) {
    for (int i = 0; i < segment.rows; ++i) {
      queries.push_back({segment.first_row + i, segment.first_position + i, &segment});
    }
    last_position = std::max(last_position, segment.first_position + segment.rows - 1);
  }
  if (config.rotary_dims > 0) ExtendAngles(config, last_position);
  float* rows = qkv.mutable_data_ptr<float>();
  const int64_t stride = qkv.size(1);
  const int pieces = qkv.numel() < kSmall ? 1 : static_cast<int>(std::min<size_t>(queries.size(), 64));
  pool_.Run(pieces, [&](int piece, int) {
    for (size_t i = piece; i < queries.size(); i += pieces) {
      PlaceRow(rows + queries[i].row * stride, config, queries[i], kv);
    }
  });

  const double scale = config.AttentionScale(layer);
  at::Tensor out = at::empty({qkv.size(0), int64_t{config.heads} * config.head_dim}, qkv.options());
  if (group == RowGroup::kWide) {
    for (const Segment& segment : segments) {
      out.narrow(0, segment.first_row, segment.rows)
          .copy_(AttendChunk(qkv.narrow(0, segment.first_row, segment.rows), config, scale, kv, segment));
    }
  } else {
    AttendRows(rows, config, scale, kv, queries, out.mutable_data_ptr<float>());
  }
  return out;
}

void CpuAttention::ExtendAngles(const ModelConfig& config, int last_position) {
  if (inv_freq_ != config.inv_freq) {
    inv_freq_ = config.inv_freq;
    cos_.clear();
    sin_.clear();
  }
  for (int position = cos_.size() / inv_freq_.size(); position <= last_position; ++position) {
    for (const float frequency : inv_freq_) {
      const float angle = static_cast<float>(position) * frequency;
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

void CpuAttention::PlaceRow(float* row, const ModelConfig& config, const Query& query, KvLayer& kv) const {
  const int64_t head_dim = config.head_dim;
  if (config.rotary_dims > 0) {
    const int64_t half = config.rotary_dims / 2;
    const float* cos = cos_.data() + query.position * half;
    const float* sin = sin_.data() + query.position * half;
    for (int head = 0; head < config.heads + config.kv_heads; ++head) {
      ops_.rotate(row + head * head_dim, cos, sin, half);
    }
  }
  const int64_t page_tokens = kv.keys.size(2);
  const int32_t page = query.segment->pages[query.position / page_tokens];
  const int64_t slot = query.position % page_tokens;
  const float* keys = row + config.heads * head_dim;
  const float* values = keys + config.kv_heads * head_dim;
  for (int head = 0; head < config.kv_heads; ++head) {
    for (const auto& [pages, from] : {std::pair{&kv.keys, keys}, std::pair{&kv.values, values}}) {
      const float* source = from + head * head_dim;
      if (dtype_ == at::kFloat) {
        std::copy_n(source, head_dim, PageRows<float>(*pages, page, head) + slot * head_dim);
      } else {
        ops_.to_bf16(source, head_dim, PageRows<uint16_t>(*pages, page, head) + slot * head_dim);
      }
    }
  }
}

void CpuAttention::AttendHead(const float* query_heads, const ModelConfig& config, int kv_head, double scale,
                              const Query& query, const KvLayer& kv, std::vector<float>& scores, float* out) const {
  const int64_t head_dim = config.head_dim;
  const int64_t group = config.heads / config.kv_heads;
  const int64_t length = query.position + 1;
  const int64_t page_tokens = kv.keys.size(2);
  if (static_cast<int64_t>(scores.size()) < group * length) scores.resize(group * length);
  for (int64_t first = 0; first < length; first += page_tokens) {
    const int32_t page = query.segment->pages[first / page_tokens];
    const int64_t count = std::min(page_tokens, length - first);
    float* page_scores = scores.data() + first;
    if (dtype_ == at::kFloat) {
      ops_.product_f32(PageRows<float>(kv.keys, page, kv_head), head_dim, count, query_heads, head_dim, group, nullptr,
                       page_scores, length);
    } else {
      ops_.product_bf16(PageRows<uint16_t>(kv.keys, page, kv_head), head_dim, count, query_heads, head_dim, group,
                        nullptr, page_scores, length);
    }
  }
  std::fill_n(out, group * head_dim, 0.0F);
  for (int64_t g = 0; g < group; ++g) {
    float* weights = scores.data() + g * length;
    float* head_out = out + g * head_dim;
    const double sum = ops_.exp_shifted(weights, ops_.max(weights, length), static_cast<float>(scale), length, weights);
    for (int64_t first = 0; first < length; first += page_tokens) {
      const int32_t page = query.segment->pages[first / page_tokens];
      const int64_t count = std::min(page_tokens, length - first);
      if (dtype_ == at::kFloat) {
        ops_.add_weighted_f32(weights + first, PageRows<float>(kv.values, page, kv_head), count, head_dim, head_out);
      } else {
        ops_.add_weighted_bf16(weights + first, PageRows<uint16_t>(kv.values, page, kv_head), count, head_dim,
                               head_out);
      }
    }
    ops_.scale(head_out, static_cast<float>(1 / sum), head_dim);
  }
}

void CpuAttention::AttendRows(const float* qkv, const ModelConfig& config, double scale, const KvLayer& kv,
                              std::span<const Query> queries, float* out) {
  const int64_t stride = int64_t{config.heads + 2 * config.kv_heads} * config.head_dim;
  const int64_t width = int64_t{config.heads} * config.head_dim;
  const int64_t group_width = width / config.kv_heads;
  int64_t work = 0;
  for (const Query& query : queries) work += 2 * width * (query.position + 1);
  const int64_t items = static_cast<int64_t>(queries.size()) * config.kv_heads;
  const int pieces = work < kSmall ? 1 : static_cast<int>(std::min<int64_t>(items, 1024));
  pool_.Run(pieces, [&](int piece, int thread) {
    for (int64_t item = items * piece / pieces; item < items * (piece + 1) / pieces; ++item) {
      const Query& query = queries[item / config.kv_heads];
      const int kv_head = static_cast<int>(item % config.kv_heads);
      AttendHead(qkv + query.row * stride + kv_head * group_width, config, kv_head, scale, query, kv, scores_[thread],
                 out + query.row * width + kv_head * group_width);
    }
  });
}

}  // namespace gatehouse
