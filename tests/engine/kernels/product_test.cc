#include <ATen/ATen.h>

#include <vector>

#include "tests/engine/kernels/kernel_sets.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AvailableKernels;
using ::gatehouse::testing::KernelsTest;
using ::gatehouse::testing::KernelsTestName;

class Product : public KernelsTest {
 protected:
  LinearWeights Weights(int64_t out, int64_t in, bool bias) const {
    return {at::randn({out, in}).to(dtype_), bias ? at::randn({out}) : at::Tensor()};
  }

  // The exact product of the rounded inputs.
  at::Tensor Expected(const at::Tensor& x, const LinearWeights& weights) const {
    at::Tensor y = x.to(dtype_).to(at::kDouble).mm(weights.weight.to(at::kDouble).t());
    return (weights.bias.defined() ? y + weights.bias : y).to(at::kFloat);
  }
};

struct Shape {
  int64_t in, out;
};

TEST_P(Product, OfFewRowsIsExactAtOddShapes) {
  at::manual_seed(1);
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 3}, Shape{16, 24}, Shape{33, 130}, Shape{64, 17}, Shape{129, 50},
                             Shape{576, 97}, Shape{1024, 257}}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) {
      const LinearWeights weights = Weights(shape.out, shape.in, rows % 2 == 1);
      const at::Tensor x = at::randn({rows, shape.in});
      const at::Tensor y = kernels_->Linear(x, weights, RowGroup::kSkinny);
      EXPECT_TRUE(at::allclose(y, Expected(x, weights), 1e-5, 1e-4))
          << rows << " rows, " << shape.in << " to " << shape.out;
    }
  }
}

TEST_P(Product, OfManyRowsOfOneSequenceIsRight) {
  at::manual_seed(2);
  const double rounding = dtype_ == at::kFloat ? 0 : 1.0 / 128;  // the library rounds its output
  for (const int64_t rows : {1, 20, 70, 300}) {
    const LinearWeights weights = Weights(97, 130, rows > 20);
    const at::Tensor x = at::randn({rows, 130});
    const at::Tensor expected = Expected(x, weights);
    EXPECT_TRUE(at::allclose(kernels_->Linear(x, weights, RowGroup::kWide), expected, 1e-5 + rounding, 1e-4 + rounding))
        << rows << " rows";
  }
}

TEST_P(Product, OfManyRowsHasTheSameBitsEachTime) {
  at::manual_seed(3);
  const LinearWeights weights = Weights(200, 192, true);
  const at::Tensor x = at::randn({64, 192});
  const at::Tensor y = kernels_->Linear(x, weights, RowGroup::kWide);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(kernels_->Linear(x, weights, RowGroup::kWide), y));
}

TEST_P(Product, RowsHaveTheSameBitsWhateverIsBesideThem) {
  at::manual_seed(4);
  for (const Shape& shape : {Shape{7, 5}, Shape{100, 61}, Shape{1024, 300}}) {
    const LinearWeights weights = Weights(shape.out, shape.in, true);
    const at::Tensor x = at::randn({40, shape.in});
    std::vector<at::Tensor> alone;
    for (int64_t row = 0; row < 40; ++row) {
      alone.push_back(kernels_->Linear(x.narrow(0, row, 1).contiguous(), weights, RowGroup::kSkinny));
    }
    for (int64_t rows = 1; rows <= 40; ++rows) {
      const int64_t first = 40 - rows;  // so that a row stands at many places
      const at::Tensor y = kernels_->Linear(x.narrow(0, first, rows).contiguous(), weights, RowGroup::kSkinny);
      ASSERT_TRUE(at::equal(y, at::cat(alone).narrow(0, first, rows)))
          << rows << " rows, " << shape.in << " to " << shape.out;
    }
  }
}

// A product big enough to be shared among threads.
TEST_P(Product, SharedAmongThreadsIsExact) {
  at::manual_seed(5);
  const LinearWeights weights = Weights(1500, 512, true);
  const at::Tensor x = at::randn({3, 512});
  EXPECT_TRUE(at::allclose(kernels_->Linear(x, weights, RowGroup::kSkinny), Expected(x, weights), 1e-5, 1e-4));
}

TEST_P(Product, KeepsNanInItsRow) {
  at::manual_seed(6);
  const LinearWeights weights = Weights(40, 33, false);
  at::Tensor x = at::randn({5, 33});
  x[2][32] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor y = kernels_->Linear(x, weights, RowGroup::kSkinny);
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_EQ(y[row].isnan().sum().item<int64_t>(), row == 2 ? 40 : 0) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Product,
                         ::testing::Combine(::testing::ValuesIn(AvailableKernels()),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         KernelsTestName);

}  // namespace
}  // namespace gatehouse
