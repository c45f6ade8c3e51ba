#include "server/engine/analysis/consensus_levels.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "server/engine/analysis/consensus_prediction.h"

namespace gatehouse {
namespace {

constexpr int kResamples = 500;
constexpr int64_t kBlocks = 20, kWindow = 300;

// A trace of `neurons` consensus neurons that fire with probability 0.8, independently, and of
// an exception neuron that fires with probability 0.1; ‖δ‖ and ‖y‖ are noise.
ConsensusTrace Noise(int64_t neurons) {
  at::manual_seed(5);
  ConsensusTrace trace;
  trace.kept = at::ones({kBlocks, kWindow}, at::kBool);
  trace.kept.narrow(1, 0, 4).fill_(false);
  trace.consensus = (at::rand({kBlocks, kWindow, neurons}) < 0.8).to(at::kFloat);
  trace.exception = (at::rand({kBlocks, kWindow, 1}) < 0.1).to(at::kFloat);
  trace.gateway = at::empty({kBlocks, kWindow, 0});
  trace.level = (trace.consensus > 0.1).sum(2);
  trace.norm = 1 + at::rand({kBlocks, kWindow}, at::kDouble);
  trace.residual = 1 + at::rand({kBlocks, kWindow}, at::kDouble);
  return trace;
}

bool Contains(const Interval& interval, double value) { return interval.low <= value && value <= interval.high; }

TEST(ConsensusLevels, CountTokensRatesAndNormsOfEachLevelWithoutSinks) {
  ConsensusTrace trace = Noise(2);
  trace.residual = 10.0 - trace.level.to(at::kDouble);
  trace.norm = 2 * trace.residual;
  trace.exception = (trace.level == 0).to(at::kFloat).unsqueeze(2);
  trace.residual.masked_fill_(~trace.kept, 1e9);
  const std::vector<LevelStatistics> levels = StatisticsByLevel(trace, kResamples, 0);
  ASSERT_EQ(levels.size(), 3u);
  int64_t tokens = 0;
  for (size_t level = 0; level < 3; ++level) {
    tokens += levels[level].tokens;
    EXPECT_EQ(levels[level].tokens, ((trace.level == static_cast<int64_t>(level)) & trace.kept).sum().item<int64_t>());
    EXPECT_DOUBLE_EQ(levels[level].residual.estimate, 10.0 - level);
    EXPECT_DOUBLE_EQ(levels[level].norm.estimate, 2 * (10.0 - level));
    EXPECT_EQ(levels[level].exception.estimate, level == 0 ? 1 : 0);
    EXPECT_TRUE(Contains(levels[level].share, levels[level].share.estimate));
  }
  EXPECT_EQ(tokens, kBlocks * (kWindow - 4));
  EXPECT_NEAR(levels[2].share.estimate, 0.64, 0.02);
  EXPECT_NEAR(ConsensusGradient(trace, kResamples, 0).estimate, -1, 1e-9);
}

TEST(ConsensusLevels, HaveNoGradientWhereNothingDependsOnThem) {
  const Interval gradient = ConsensusGradient(Noise(7), kResamples, 0);
  EXPECT_NEAR(gradient.estimate, 0, 0.05);
  EXPECT_TRUE(Contains(gradient, 0)) << gradient.low << " " << gradient.high;
  EXPECT_TRUE(std::isnan(ConsensusGradient(Noise(0), kResamples, 0).estimate));
}

TEST(ConsensusLevels, ExclusivityOfIndependentNeuronsIsThatOfIndependence) {
  const ConsensusTrace trace = Noise(1);
  const Exclusivity found = MeasureExclusivity(trace.exception.select(2, 0) > 0.1, trace.consensus.select(2, 0) > 0.1,
                                               trace.kept, kResamples, 0);
  EXPECT_NEAR(found.first_rate, 0.1, 0.02);
  EXPECT_NEAR(found.second_rate, 0.8, 0.02);
  // High although the two know nothing of each other.
  EXPECT_NEAR(found.independent, 1 - 0.08 / 0.82, 0.02);
  EXPECT_NEAR(found.excess.estimate, found.value.estimate - found.independent, 1e-12);
  EXPECT_TRUE(Contains(found.excess, 0)) << found.excess.low << " " << found.excess.high;
}

TEST(ConsensusLevels, ExclusivityIsOneForNeuronsThatNeverFireTogetherAndZeroForTwins) {
  const ConsensusTrace trace = Noise(1);
  const at::Tensor fires = trace.consensus.select(2, 0) > 0.1;
  const Exclusivity opposite = MeasureExclusivity(~fires, fires, trace.kept, kResamples, 0);
  EXPECT_EQ(opposite.value.estimate, 1);
  EXPECT_GT(opposite.excess.low, 0);
  EXPECT_EQ(MeasureExclusivity(fires, fires, trace.kept, kResamples, 0).value.estimate, 0);
  const at::Tensor never = at::zeros_like(fires);
  EXPECT_TRUE(std::isnan(MeasureExclusivity(never, never, trace.kept, kResamples, 0).value.estimate));
}

TEST(ConsensusPrediction, OfNoiseIsNoBetterThanTheBaseRate) {
  const ConsensusTrace trace = Noise(3);
  ConsensusTrace other = trace;
  other.residual = trace.residual.flip(1);
  const auto found = PredictFromConsensus(trace, other, 0.01, kResamples, 0);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_NEAR(found->base_rate, 0.75, 0.02);
  for (const ConsensusReading& reading : {found->binary, found->continuous}) {
    EXPECT_NEAR(reading.accuracy.estimate, found->base_rate, 0.02);
    EXPECT_LE(reading.gain.low, 0);
    EXPECT_TRUE(Contains(reading.auc, 0.5)) << reading.auc.low << " " << reading.auc.high;
    EXPECT_LT(reading.r2.estimate, 0.01);
  }
  // These activations are 0 or 1, so that they are their own bits.
  EXPECT_EQ(found->accuracy_difference.estimate, 0);
}

TEST(ConsensusPrediction, SeesWhatTheActivationsSayBeyondTheBits) {
  ConsensusTrace trace = Noise(1);
  // The top quarter is where the one neuron is most active, of the four fifths where it fires.
  trace.consensus *= (1 + at::rand({kBlocks, kWindow, 1}));
  trace.residual = trace.consensus.select(2, 0).to(at::kDouble);
  trace.norm = 3 * trace.residual + 1;
  const auto found = PredictFromConsensus(trace, trace, 0.01, kResamples, 0);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->continuous.accuracy.estimate, 0.95);
  EXPECT_GT(found->accuracy_difference.low, 0);
  EXPECT_GT(found->continuous.r2.estimate, 0.999);
  EXPECT_GT(found->r2_difference.low, 0);
  EXPECT_NEAR(found->r2_difference.estimate, found->continuous.r2.estimate - found->binary.r2.estimate, 1e-9);
  EXPECT_NEAR(found->accuracy_difference.estimate,
              found->continuous.accuracy.estimate - found->binary.accuracy.estimate, 1e-12);
}

}  // namespace
}  // namespace gatehouse
