#include "server/engine/analysis/surrogate_fit.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <limits>

#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::_;
using testing::StatusIs;

double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(SurrogateFit, EqualsTheRidgeSolutionThatAnAugmentedLeastSquaresGives) {
  at::manual_seed(3);
  const double lambda = 5;
  const at::Tensor x = at::randn({200, 7}) + 3, y = at::randn({200, 4}).add(x.matmul(at::randn({7, 4})));
  RidgeSums sums(7, 4, at::kCPU);
  sums.Add(x.narrow(0, 0, 150), y.narrow(0, 0, 150));
  RidgeSums rest(7, 4, at::kCPU);
  rest.Add(x.narrow(0, 150, 50), y.narrow(0, 150, 50));
  sums.Add(rest);
  const auto surrogate = sums.Solve(lambda);
  ASSERT_TRUE(surrogate.ok()) << surrogate.status();

  // min ‖y_c − x_c W‖² + λ‖W‖² is plain least squares with √λ I rows below x_c, 0 below y_c.
  const at::Tensor x64 = x.to(at::kDouble), y64 = y.to(at::kDouble);
  const at::Tensor below = at::eye(7, at::kDouble) * std::sqrt(lambda);
  const at::Tensor solution = std::get<0>(at::linalg_lstsq(
      at::cat({x64 - x64.mean(0), below}), at::cat({y64 - y64.mean(0), at::zeros({7, 4}, at::kDouble)})));
  EXPECT_LT(LargestDifference(surrogate->weight, solution.t()), 1e-6);
  EXPECT_LT(LargestDifference(surrogate->bias, y64.mean(0) - x64.mean(0).matmul(solution)), 1e-5);
  EXPECT_LT(LargestDifference(surrogate->output_mean, y64.mean(0)), 1e-12);
}

TEST(SurrogateFit, RecoversALinearMapExactly) {
  at::manual_seed(4);
  const at::Tensor weight = at::randn({5, 6}), bias = at::randn({5}), x = at::randn({300, 6});
  const at::Tensor y = at::linear(x, weight, bias);
  RidgeSums sums(6, 5, at::kCPU);
  sums.Add(x, y);
  const auto surrogate = sums.Solve(1e-6);
  ASSERT_TRUE(surrogate.ok());
  EXPECT_LT(LargestDifference(surrogate->weight, weight), 1e-5);
  R2Sums r2;
  r2.Add(y, surrogate->Predict(x), surrogate->output_mean);
  EXPECT_GT(r2.Value(), 1 - 1e-9);
}

TEST(SurrogateFit, HoldsWhereLayerNormRemovesADimension) {
  at::manual_seed(5);
  const at::Tensor x = at::layer_norm(at::randn({400, 16}), {16});
  const at::Tensor y = at::linear(x, at::randn({16, 16}));
  RidgeSums sums(16, 16, at::kCPU);
  sums.Add(x, y);
  const auto surrogate = sums.Solve(0.01);
  ASSERT_TRUE(surrogate.ok());
  EXPECT_LT(LargestDifference(surrogate->Predict(x), y), 1e-3);
}

TEST(SurrogateFit, R2IsPooledOverDimensionsAndTakesTheMeanOfTheFit) {
  const at::Tensor y = at::tensor({1.0f, 10.0f, 3.0f, 30.0f}).view({2, 2});
  const at::Tensor predicted = at::tensor({2.0f, 10.0f, 3.0f, 28.0f}).view({2, 2});
  const at::Tensor fit_mean = at::tensor({0.0, 20.0}, at::kDouble);
  R2Sums r2;
  r2.Add(y, predicted, fit_mean);
  EXPECT_DOUBLE_EQ(r2.Value(), 1 - 5.0 / (1 + 100 + 9 + 100));
}

TEST(SurrogateFit, RefusesNoTokensAndNumbersThatAreNotFinite) {
  RidgeSums sums(2, 2, at::kCPU);
  EXPECT_THAT(sums.Solve(0.01), StatusIs(absl::StatusCode::kFailedPrecondition, _));
  sums.Add(at::ones({3, 2}), at::full({3, 2}, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_THAT(sums.Solve(0.01), StatusIs(absl::StatusCode::kFailedPrecondition, _));
}

}  // namespace
}  // namespace gatehouse
