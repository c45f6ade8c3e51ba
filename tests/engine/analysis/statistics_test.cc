#include "server/engine/analysis/statistics.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "server/engine/analysis/bottleneck_gate.h"
#include "tests/engine/analysis/logistic_fixture.h"
#include "tests/engine/analysis/statistics_fixture.h"

namespace gatehouse {
namespace {

constexpr int kResamples = 10'000;

std::vector<int64_t> Blocks() {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < kStatisticsTokens; ++i) blocks.push_back(i / kStatisticsWindow);
  return blocks;
}

at::Tensor Ce(const double* values) {
  return at::tensor(std::vector<double>(values, values + kStatisticsTokens))
      .view({kStatisticsBlocks, kStatisticsWindow});
}

// The bounds of two bootstraps differ by chance: by some hundredths of the width.
void ExpectNear(const Interval& interval, double estimate, const double (&reference)[2]) {
  const double slack = 0.05 * (reference[1] - reference[0]);
  EXPECT_NEAR(interval.estimate, estimate, 1e-8);
  EXPECT_NEAR(interval.low, reference[0], slack);
  EXPECT_NEAR(interval.high, reference[1], slack);
}

TEST(Statistics, PerplexityChangeAndItsIntervalAreNumpys) {
  ExpectNear(BootstrapPerplexityChange(Ce(kFullCe), Ce(kOtherCe), kResamples, 1), kChange, kChangeInterval);
}

TEST(Statistics, AucAndItsIntervalAreScikitLearns) {
  EXPECT_NEAR(Auc(kScores, kLabels), kAuc, 1e-8);
  ExpectNear(BootstrapAuc(kScores, kLabels, Blocks(), kStatisticsBlocks, kResamples, 1), kAuc, kAucInterval);
  ExpectNear(BootstrapAucDifference(kScores, kBaseScores, kLabels, Blocks(), kStatisticsBlocks, kResamples, 1),
             kAuc - kBaseAuc, kDifferenceInterval);
}

TEST(Statistics, PearsonIsNumpys) {
  EXPECT_NEAR(Pearson(kScores, kBaseScores), kPearson, 1e-8);
  EXPECT_TRUE(std::isnan(Pearson(std::vector<double>{1}, std::vector<double>{2})));
  EXPECT_TRUE(std::isnan(Pearson(std::vector<double>{1, 1, 1}, std::vector<double>{1, 2, 3})));
}

TEST(Statistics, SpearmanBrownDoublesTheTest) {
  EXPECT_NEAR(SpearmanBrown(0.5), 2.0 / 3, 1e-12);
  EXPECT_EQ(SpearmanBrown(0), 0);
}

TEST(Statistics, TiesAreHalfWonAndAnEmptyClassHasNoAuc) {
  const std::vector<double> same(4, 1.0), ordered = {1, 2, 3, 4};
  EXPECT_EQ(Auc(same, std::vector<uint8_t>{0, 1, 0, 1}), 0.5);
  EXPECT_EQ(Auc(ordered, std::vector<uint8_t>{0, 0, 1, 1}), 1);
  EXPECT_EQ(Auc(ordered, std::vector<uint8_t>{1, 1, 0, 0}), 0);
  EXPECT_TRUE(std::isnan(Auc(ordered, std::vector<uint8_t>{1, 1, 1, 1})));
  EXPECT_TRUE(std::isnan(Auc({}, {})));
}

TEST(Statistics, AStatisticThatOftenDoesNotExistHasNoInterval) {
  // One block of four has the only negative: a third of the resamples miss it.
  const std::vector<double> scores = {1, 2, 3, 4};
  const std::vector<uint8_t> labels = {0, 1, 1, 1};
  const Interval interval = BootstrapAuc(scores, labels, std::vector<int64_t>{0, 1, 2, 3}, 4, 1000, 1);
  EXPECT_EQ(interval.estimate, 1);
  EXPECT_TRUE(std::isnan(interval.low) && std::isnan(interval.high));
}

TEST(Statistics, RandomScoresHaveAnIntervalOverOneHalf) {
  at::manual_seed(3);
  const at::Tensor draws = at::rand({2, 4000}, at::kDouble);
  std::vector<double> scores;
  std::vector<uint8_t> labels;
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < 4000; ++i) {
    scores.push_back(draws[0][i].item<double>());
    labels.push_back(draws[1][i].item<double>() < 0.5);
    blocks.push_back(i / 100);
  }
  const Interval auc = BootstrapAuc(scores, labels, blocks, 40, kResamples, 1);
  EXPECT_LT(auc.low, 0.5);
  EXPECT_GT(auc.high, 0.5);
  EXPECT_LT(auc.high - auc.low, 0.08);
}

TEST(Statistics, TheSameSeedDrawsTheSameBlocks) {
  const auto high = [](uint64_t seed) { return BootstrapPerplexityChange(Ce(kFullCe), Ce(kOtherCe), 200, seed).high; };
  EXPECT_EQ(high(5), high(5));
  EXPECT_NE(high(5), high(6));
}

TEST(Statistics, ResamplesInManyPiecesAreTheSameInterval) {
  // 3,000 blocks of which a piece of resamples holds a few hundred.
  const at::Tensor full = at::zeros({3000, 2}, at::kDouble);
  const at::Tensor other = at::arange(6000, at::kDouble).view({3000, 2}) / 6000 - 0.5;
  const Interval interval = BootstrapPerplexityChange(full, other, 1000, 2);
  // The mean of 3,000 block means that are uniform over a width of 1.
  const double error = 1.96 / std::sqrt(12 * 3000.0);
  EXPECT_NEAR(interval.low, std::expm1(interval.estimate - error), 0.15 * error);
  EXPECT_NEAR(interval.high, std::expm1(interval.estimate + error), 0.15 * error);
}

TEST(BottleneckGate, EqualsScikitLearnsPipeline) {
  const at::Tensor x =
      at::tensor(std::vector<float>(std::begin(kFixtureX), std::end(kFixtureX))).view({kFixtureRows, kFixtureColumns});
  const auto gates = FitBottleneckGates(x, kFixtureLabels, std::vector<int>{1, 2});
  ASSERT_TRUE(gates.ok()) << gates.status();
  ASSERT_EQ(gates->size(), 2u);
  const at::Tensor p = gates->front().Probability(x);
  for (int i = 0; i < kFixtureRows; ++i) EXPECT_NEAR(p[i].item<float>(), kBottleneckP[i], 2e-5) << i;
  // As many components as inputs leave nothing out, but their own scales change the penalty.
  const auto whole = FitLogisticGate(x, kFixtureLabels);
  ASSERT_TRUE(whole.ok());
  EXPECT_LT((gates->back().Probability(x) - whole->Probability(x)).abs().max().item<float>(), 0.1);
}

TEST(BottleneckGate, DoesNotSeeWhatVariesLittle) {
  at::manual_seed(9);
  at::Tensor x = at::randn({2000, 16});
  // Six dimensions move together and decide nothing; the label follows one that stands alone.
  x.narrow(1, 0, 6).add_(8 * at::randn({2000, 1}));
  std::vector<uint8_t> labels;
  for (int64_t i = 0; i < 2000; ++i) labels.push_back(x[i][10].item<float>() > 0);
  const auto narrow = FitBottleneckGates(x, labels, std::vector<int>{1});
  const auto wide = FitLogisticGate(x, labels);
  ASSERT_TRUE(narrow.ok() && wide.ok());
  const auto auc = [&](const LogisticGate& gate) {
    const at::Tensor p = gate.Probability(x).to(at::kDouble).contiguous();
    return Auc({p.const_data_ptr<double>(), 2000}, labels);
  };
  EXPECT_GT(auc(*wide), 0.99);
  EXPECT_LT(auc(narrow->front()), 0.95);
}

TEST(BottleneckGate, RefusesInputsThatAreNotFinite) {
  at::Tensor x = at::ones({10, 4});
  x[3][2] = std::nan("");
  const std::vector<uint8_t> labels = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  EXPECT_EQ(FitBottleneckGates(x, labels, std::vector<int>{1}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace gatehouse
