#include <ATen/ATen.h>

#include <vector>

#include "tests/engine/kernels/kernel_sets.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AvailableKernels;
using ::gatehouse::testing::KernelsTest;
using ::gatehouse::testing::KernelsTestName;

constexpr int kPageTokens = 8;
constexpr int kPages = 40;

struct HeadShape {
  int heads, kv_heads, head_dim, rotary_dims;
};

ModelConfig Config(const HeadShape& shape) {
  ModelConfig config;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.rotary_dims = shape.rotary_dims;
  for (int i = 0; i < shape.rotary_dims / 2; ++i) {
    config.inv_freq.push_back(std::pow(100.0F, -2.0F * static_cast<float>(i) / static_cast<float>(shape.rotary_dims)));
  }
  return config;
}

int64_t QkvWidth(const ModelConfig& config) { return int64_t{config.heads + 2 * config.kv_heads} * config.head_dim; }

class Attention : public KernelsTest {
 protected:
  // Pages hold NaN until they are written: nothing may read them before.
  KvLayer EmptyPages(const ModelConfig& config) const {
    const auto options = at::TensorOptions().dtype(dtype_);
    const std::vector<int64_t> shape = {kPages, config.kv_heads, kPageTokens, config.head_dim};
    return {at::full(shape, std::nan(""), options), at::full(shape, std::nan(""), options)};
  }

  // The textbook's attention of one whole sequence in double.  qkv: [tokens, width].
  at::Tensor Expected(const at::Tensor& qkv, const ModelConfig& config) const {
    const int64_t tokens = qkv.size(0);
    at::Tensor heads = qkv.to(at::kDouble).view({tokens, -1, config.head_dim}).clone();
    const int64_t half = config.rotary_dims / 2;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * config.inv_freq[i];
        for (int64_t head = 0; head < config.heads + config.kv_heads; ++head) {
          const double low = heads[t][head][i].item<double>();
          const double high = heads[t][head][i + half].item<double>();
          heads[t][head][i] = low * std::cos(angle) - high * std::sin(angle);
          heads[t][head][i + half] = high * std::cos(angle) + low * std::sin(angle);
        }
      }
    }
    const int64_t group = config.heads / config.kv_heads;
    const at::Tensor q = heads.narrow(1, 0, config.heads).transpose(0, 1);
    const auto expand = [&](int64_t first) {
      return heads.narrow(1, first, config.kv_heads)
          .to(dtype_)
          .to(at::kDouble)
          .transpose(0, 1)
          .repeat_interleave(group, 0);
    };
    const at::Tensor k = expand(config.heads);
    const at::Tensor v = expand(config.heads + config.kv_heads);
    const at::Tensor mask = at::ones({tokens, tokens}, at::kBool).triu(1);
    const at::Tensor scores = (q.bmm(k.transpose(1, 2)) * config.AttentionScale(0)).masked_fill(mask, -INFINITY);
    return scores.softmax(-1).bmm(v).transpose(0, 1).reshape({tokens, -1}).to(at::kFloat);
  }

  // Runs `qkv` through the cache in chunks of the given sizes.
  at::Tensor Run(const at::Tensor& qkv, const ModelConfig& config, const std::vector<int>& chunks, RowGroup group,
                 std::span<const int32_t> pages, KvLayer& kv) const {
    std::vector<at::Tensor> outputs;
    int position = 0;
    for (const int rows : chunks) {
      at::Tensor chunk = qkv.narrow(0, position, rows).clone();
      const Segment segment = {.first_row = 0, .rows = rows, .first_position = position, .pages = pages};
      outputs.push_back(kernels_->Attention(chunk, config, 0, kv, {&segment, 1}, group));
      position += rows;
    }
    return at::cat(outputs);
  }

  double Tolerance(RowGroup group) const { return dtype_ == at::kFloat || group == RowGroup::kSkinny ? 3e-5 : 3e-2; }
};

constexpr HeadShape kShapes[] = {{2, 2, 16, 0}, {3, 3, 20, 6}, {4, 2, 64, 64}, {9, 3, 64, 64}, {6, 1, 33, 4}};

// Scattered and out of order.
std::vector<int32_t> PagesFrom(int first, int count) {
  std::vector<int32_t> pages;
  for (int i = 0; i < count; ++i) pages.push_back((first + 7 * i) % kPages);
  return pages;
}

TEST_P(Attention, IsRightPositionByPosition) {
  at::manual_seed(1);
  for (const HeadShape& shape : kShapes) {
    const ModelConfig config = Config(shape);
    const at::Tensor qkv = at::randn({21, QkvWidth(config)});
    KvLayer kv = EmptyPages(config);
    const auto pages = PagesFrom(3, 3);
    const at::Tensor out = Run(qkv, config, std::vector<int>(21, 1), RowGroup::kSkinny, pages, kv);
    EXPECT_TRUE(at::allclose(out, Expected(qkv, config), 1e-4, Tolerance(RowGroup::kSkinny))) << shape.heads;
  }
}

TEST_P(Attention, IsRightInChunks) {
  at::manual_seed(2);
  for (const HeadShape& shape : kShapes) {
    const ModelConfig config = Config(shape);
    const at::Tensor qkv = at::randn({61, QkvWidth(config)});
    const auto pages = PagesFrom(5, 8);
    for (const RowGroup group : {RowGroup::kSkinny, RowGroup::kWide}) {
      KvLayer kv = EmptyPages(config);
      const at::Tensor out = Run(qkv, config, {30, 1, 27, 3}, group, pages, kv);
      EXPECT_TRUE(at::allclose(out, Expected(qkv, config), 1e-4, Tolerance(group))) << shape.heads;
    }
  }
}

// Several sequences at different lengths, each with the bits of its solo run.
TEST_P(Attention, RowsHaveTheSameBitsWhateverIsBesideThem) {
  at::manual_seed(3);
  const ModelConfig config = Config({4, 2, 20, 8});
  constexpr int kLengths[] = {1, 9, 16, 30};
  std::vector<at::Tensor> qkv;
  std::vector<at::Tensor> solo;
  std::vector<std::vector<int32_t>> pages;
  for (int i = 0; i < 4; ++i) {
    qkv.push_back(at::randn({kLengths[i], QkvWidth(config)}));
    pages.push_back(PagesFrom(10 * i, 4));
    KvLayer kv = EmptyPages(config);
    solo.push_back(Run(qkv[i], config, std::vector<int>(kLengths[i], 1), RowGroup::kSkinny, pages[i], kv));
  }
  // All at once, the last positions of each sequence, after the others went in alone.
  constexpr int kLast[] = {1, 2, 1, 5};
  KvLayer kv = EmptyPages(config);
  std::vector<Segment> segments;
  std::vector<at::Tensor> rows;
  int row = 0;
  for (int i = 0; i < 4; ++i) {
    pages[i] = {};
    for (int page = 0; page < 4; ++page) pages[i].push_back(4 * page + i);
    const int before = kLengths[i] - kLast[i];
    if (before > 0) Run(qkv[i].narrow(0, 0, before), config, {before}, RowGroup::kSkinny, pages[i], kv);
    rows.push_back(qkv[i].narrow(0, before, kLast[i]));
    segments.push_back({.first_row = row, .rows = kLast[i], .first_position = before, .pages = pages[i]});
    row += kLast[i];
  }
  at::Tensor together = at::cat(rows);
  const at::Tensor out = kernels_->Attention(together, config, 0, kv, segments, RowGroup::kSkinny);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(
        at::equal(out.narrow(0, segments[i].first_row, kLast[i]), solo[i].narrow(0, kLengths[i] - kLast[i], kLast[i])))
        << "sequence " << i;
  }
}

TEST_P(Attention, SurvivesHugeScores) {
  const ModelConfig config = Config({1, 1, 16, 0});
  at::Tensor qkv = at::zeros({3, 48});
  qkv.narrow(1, 0, 32).fill_(3e3);
  qkv[1].narrow(0, 16, 16).fill_(-3e3);
  qkv.narrow(1, 32, 16).fill_(2);
  KvLayer kv = EmptyPages(config);
  const auto pages = PagesFrom(0, 1);
  const at::Tensor out = Run(qkv, config, {3}, RowGroup::kSkinny, pages, kv);
  EXPECT_TRUE(at::allclose(out, at::full({3, 16}, 2.0)));
}

INSTANTIATE_TEST_SUITE_P(All, Attention,
                         ::testing::Combine(::testing::ValuesIn(AvailableKernels()),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         KernelsTestName);

}  // namespace
}  // namespace gatehouse
