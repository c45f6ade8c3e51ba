#include <ATen/ATen.h>

#include <limits>

#include "tests/engine/kernels/kernel_sets.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AvailableKernels;
using ::gatehouse::testing::KernelsTest;
using ::gatehouse::testing::KernelsTestName;

constexpr Activation kActivations[] = {Activation::kGeluTanh, Activation::kGeluErf, Activation::kRelu,
                                       Activation::kSilu};

at::Tensor Activated(const at::Tensor& x, Activation activation) {
  const at::Tensor exact = x.to(at::kDouble);
  switch (activation) {
    case Activation::kGeluTanh:
      return at::gelu(exact, "tanh").to(at::kFloat);
    case Activation::kGeluErf:
      return at::gelu(exact).to(at::kFloat);
    case Activation::kRelu:
      return at::relu(exact).to(at::kFloat);
    case Activation::kSilu:
      return at::silu(exact).to(at::kFloat);
  }
  return {};
}

at::Tensor FirstRows(const at::Tensor& x, int64_t rows) { return x.narrow(0, 0, rows).clone(); }

class Ops : public KernelsTest {};

TEST_P(Ops, LayerNormIsRight) {
  at::manual_seed(1);
  for (const int64_t width : {1, 5, 16, 48, 100, 1024}) {
    const NormWeights weights = {at::randn({width}), at::randn({width})};
    const at::Tensor x = at::randn({3, width}) * 4 + 10;
    const at::Tensor expected =
        at::layer_norm(x.to(at::kDouble), {width}, weights.weight.to(at::kDouble), weights.bias.to(at::kDouble), 1e-5)
            .to(at::kFloat);
    EXPECT_TRUE(at::allclose(kernels_->Norm(x, weights, NormKind::kLayerNorm, 1e-5), expected, 1e-4, 1e-4)) << width;
  }
}

TEST_P(Ops, RmsNormIsRight) {
  at::manual_seed(2);
  for (const int64_t width : {1, 5, 16, 100, 576}) {
    const NormWeights weights = {at::randn({width}), {}};
    const at::Tensor x = at::randn({4, width}) * 3;
    const at::Tensor expected = x * at::rsqrt(x.square().mean(1, true) + 1e-5) * weights.weight;
    EXPECT_TRUE(at::allclose(kernels_->Norm(x, weights, NormKind::kRmsNorm, 1e-5), expected, 1e-5, 1e-5)) << width;
  }
}

TEST_P(Ops, ActivationsAreRight) {
  at::manual_seed(3);
  for (const Activation activation : kActivations) {
    for (const int64_t width : {1, 19, 64, 4096}) {
      at::Tensor x = at::randn({3, width}) * 5;
      x[0][0] = 100;
      x[1][0] = -100;
      x[2][0] = 0;
      const at::Tensor expected = Activated(x, activation);
      kernels_->Activate(x, activation);
      EXPECT_TRUE(at::allclose(x, expected, 1e-5, 2e-6)) << static_cast<int>(activation) << " " << width;
    }
  }
}

TEST_P(Ops, ActivationsKeepNan) {
  for (const Activation activation : kActivations) {
    at::Tensor x = at::zeros({1, 17});
    x[0][3] = std::numeric_limits<float>::quiet_NaN();
    x[0][16] = std::numeric_limits<float>::quiet_NaN();
    kernels_->Activate(x, activation);
    EXPECT_EQ(x.isnan().sum().item<int64_t>(), 2) << static_cast<int>(activation);
  }
}

TEST_P(Ops, GatedActivationIsRightAndReportsItsGate) {
  at::manual_seed(4);
  for (const Activation activation : kActivations) {
    const at::Tensor x = at::randn({5, 2 * 37}) * 3;
    const at::Tensor gate = Activated(x.narrow(1, 0, 37).contiguous(), activation);
    at::Tensor reported;
    const at::Tensor y = kernels_->GatedActivate(x, activation, &reported);
    EXPECT_TRUE(at::allclose(reported, gate, 1e-5, 2e-6));
    EXPECT_TRUE(at::allclose(y, gate * x.narrow(1, 37, 37), 1e-5, 1e-5));
    EXPECT_TRUE(at::equal(kernels_->GatedActivate(x, activation, nullptr), y));
  }
}

TEST_P(Ops, EmbedTakesRowsOfTheTable) {
  at::manual_seed(5);
  const at::Tensor table = at::randn({11, 37}).to(dtype_);
  const std::vector<int32_t> ids = {10, 0, 3, 3};
  const at::Tensor rows = kernels_->Embed(table, ids);
  EXPECT_EQ(rows.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(rows, table.index_select(0, at::tensor({10, 0, 3, 3}, at::kLong)).to(at::kFloat)));
}

TEST_P(Ops, DotAndRowNormsAreRight) {
  at::manual_seed(6);
  for (const int64_t width : {1, 31, 70, 1024}) {
    const at::Tensor x = at::randn({6, width});
    const at::Tensor y = at::randn({6, width});
    const at::Tensor w = at::randn({width});
    const auto dots = kernels_->Dot(x, w, 0.25F);
    const auto norms = kernels_->RowNorms(x);
    const auto distances = kernels_->RowNorms(x, &y);
    for (int64_t row = 0; row < 6; ++row) {
      EXPECT_NEAR(dots[row], (x[row] * w).to(at::kDouble).sum().item<double>() + 0.25, 1e-4);
      EXPECT_NEAR(norms[row], x[row].to(at::kDouble).norm().item<double>(), 1e-4);
      EXPECT_NEAR(distances[row], (x[row] - y[row]).to(at::kDouble).norm().item<double>(), 1e-4);
    }
  }
}

// Norms, activations and sums of 40 rows against those of each count from 1 to 40.
TEST_P(Ops, RowsHaveTheSameBitsWhateverIsBesideThem) {
  at::manual_seed(7);
  for (const int64_t width : {50, 1030}) {
    const at::Tensor x = at::randn({40, 2 * width});
    const NormWeights weights = {at::randn({2 * width}), at::randn({2 * width})};
    const auto all = [&](const at::Tensor& rows) {
      at::Tensor activated = rows.clone();
      kernels_->Activate(activated, Activation::kGeluTanh);
      const auto norms = kernels_->RowNorms(rows, &activated);
      const auto dots = kernels_->Dot(rows, weights.weight, 1);
      return std::vector<at::Tensor>{activated,
                                     kernels_->Norm(rows, weights, NormKind::kLayerNorm, 1e-5),
                                     kernels_->Norm(rows, weights, NormKind::kRmsNorm, 1e-5),
                                     kernels_->GatedActivate(rows, Activation::kSilu, nullptr),
                                     at::tensor(norms),
                                     at::tensor(dots)};
    };
    const std::vector<at::Tensor> together = all(x);
    for (int64_t rows = 1; rows < 40; ++rows) {
      const std::vector<at::Tensor> some = all(FirstRows(x, rows));
      for (size_t i = 0; i < some.size(); ++i) {
        ASSERT_TRUE(at::equal(some[i], together[i].narrow(0, 0, rows))) << "operation " << i << ", " << rows << " rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Ops,
                         ::testing::Combine(::testing::ValuesIn(AvailableKernels()),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         KernelsTestName);

}  // namespace
}  // namespace gatehouse
