#include "server/engine/analysis/logistic_gate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/engine/analysis/logistic_fixture.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using testing::StatusIs;

double Auc(const at::Tensor& scores, const std::vector<uint8_t>& labels) {
  double above = 0, pairs = 0;
  for (int64_t i = 0; i < scores.size(0); ++i) {
    for (int64_t j = 0; j < scores.size(0); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      const double a = scores[i].item<double>(), b = scores[j].item<double>();
      above += a > b ? 1 : a == b ? 0.5 : 0;
      pairs += 1;
    }
  }
  return above / pairs;
}

TEST(LogisticGate, EqualsScikitLearn) {
  const at::Tensor x =
      at::tensor(std::vector<float>(std::begin(kFixtureX), std::end(kFixtureX))).view({kFixtureRows, kFixtureColumns});
  const auto gate = FitLogisticGate(x, kFixtureLabels);
  ASSERT_TRUE(gate.ok()) << gate.status();
  for (int i = 0; i < kFixtureColumns; ++i) EXPECT_NEAR(gate->weight[i].item<float>(), kFixtureWeight[i], 2e-5) << i;
  EXPECT_NEAR(gate->bias.item<float>(), kFixtureBias, 2e-5);
}

TEST(LogisticGate, FindsATargetThatDependsOnOneDirection) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({1200, 24}) * 3 + 1, direction = at::randn({24});
  std::vector<uint8_t> labels;
  for (int64_t i = 0; i < x.size(0); ++i) labels.push_back(at::dot(x[i] - 1, direction).item<float>() > 0);
  const auto gate = FitLogisticGate(x.narrow(0, 0, 900), {labels.data(), 900});
  ASSERT_TRUE(gate.ok());
  const std::vector<uint8_t> held_out(labels.begin() + 900, labels.end());
  EXPECT_GT(Auc(gate->Probability(x.narrow(0, 900, 300)), held_out), 0.995);
}

TEST(LogisticGate, FindsNothingInLabelsThatDoNotDependOnTheInput) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({1200, 8}), coin = at::rand({1200});
  std::vector<uint8_t> labels;
  for (int64_t i = 0; i < 1200; ++i) labels.push_back(coin[i].item<float>() > 0.5f);
  const auto gate = FitLogisticGate(x.narrow(0, 0, 900), {labels.data(), 900});
  ASSERT_TRUE(gate.ok());
  EXPECT_NEAR(Auc(gate->Probability(x.narrow(0, 900, 300)), {labels.begin() + 900, labels.end()}), 0.5, 0.12);
}

TEST(LogisticGate, IsConstantWhereAllLabelsAreAlike) {
  const at::Tensor x = at::randn({9, 3});
  const auto all = FitLogisticGate(x, std::vector<uint8_t>(9, 1));
  const auto none = FitLogisticGate(x, std::vector<uint8_t>(9, 0));
  ASSERT_TRUE(all.ok() && none.ok());
  EXPECT_EQ(all->weight.abs().max().item<float>(), 0);
  EXPECT_FLOAT_EQ(all->bias.item<float>(), std::log(9.5f / 0.5f));
  EXPECT_FLOAT_EQ(none->bias.item<float>(), -std::log(9.5f / 0.5f));
}

TEST(LogisticGate, IgnoresAColumnThatDoesNotVary) {
  at::manual_seed(8);
  at::Tensor x = at::randn({100, 3});
  x.select(1, 1).fill_(0.1);
  std::vector<uint8_t> labels;
  for (int64_t i = 0; i < 100; ++i) labels.push_back(x[i][0].item<float>() + x[i][2].item<float>() > 0.3f);
  const auto gate = FitLogisticGate(x, labels);
  ASSERT_TRUE(gate.ok());
  EXPECT_NEAR(gate->weight[1].item<float>(), 0, 1e-6);
  EXPECT_GT(gate->weight[0].item<float>(), 1);
}

TEST(LogisticGate, RefusesInputsThatAreNotFinite) {
  at::Tensor x = at::randn({4, 2});
  x[2][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(FitLogisticGate(x, std::vector<uint8_t>{0, 1, 0, 1}), StatusIs(absl::StatusCode::kFailedPrecondition, _));
}

TEST(LogisticGate, LabelsAreAtOrBelowTheMedianOfTheCost) {
  const double costs[] = {0.5, -0.5, 0.1, -0.1, 0.0};
  EXPECT_THAT(GateLabels(costs), ElementsAre(0, 1, 0, 1, 1));
}

TEST(LogisticGate, LabelsAreAtOrBelowTheLowestQuarterWhereHardlyACostIsNegative) {
  std::vector<double> costs;
  for (int i = 1; i <= 100; ++i) costs.push_back(i);
  costs[0] = -1;
  const std::vector<uint8_t> labels = GateLabels(costs);
  EXPECT_EQ(std::count(labels.begin(), labels.end(), uint8_t{1}), 25);
  for (int i = 0; i < 5; ++i) costs[i] = -1;
  const std::vector<uint8_t> at_five_percent = GateLabels(costs);
  EXPECT_EQ(std::count(at_five_percent.begin(), at_five_percent.end(), uint8_t{1}), 50);
}

}  // namespace
}  // namespace gatehouse
