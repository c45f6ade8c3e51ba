#include "server/engine/analysis/nonlinearity.h"

#include <gmock/gmock.h>

namespace gatehouse {
namespace {

using ::testing::ElementsAre;

TEST(Nonlinearity, QuantilesInterpolateAsNumpyDoes) {
  const double values[] = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(Quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.95), 7.4);
  EXPECT_DOUBLE_EQ(Quantile(values, 1), 8);
  EXPECT_DOUBLE_EQ(Quantile(std::span(values, 1), 0.7), 1);
}

TEST(Nonlinearity, RegimesAreStrictlyBelowP25AndAboveP95) {
  std::vector<double> scores;
  for (int i = 100; i >= 0; --i) scores.push_back(i);
  const ScorePercentiles percentiles = PercentilesOf(scores);
  EXPECT_DOUBLE_EQ(percentiles.p25, 25);
  EXPECT_DOUBLE_EQ(percentiles.p50, 50);
  EXPECT_DOUBLE_EQ(percentiles.p70, 70);
  EXPECT_DOUBLE_EQ(percentiles.p95, 95);
  const double probe[] = {24.9, 25, 95, 95.1};
  EXPECT_THAT(RegimesOf(probe, percentiles),
              ElementsAre(Regime::kLinear, Regime::kOther, Regime::kOther, Regime::kHigh));
}

TEST(Nonlinearity, EqualScoresBelongToNoRegime) {
  const std::vector<double> scores(40, 0.0);
  for (const Regime regime : RegimesOf(scores, PercentilesOf(scores))) EXPECT_EQ(regime, Regime::kOther);
}

}  // namespace
}  // namespace gatehouse
