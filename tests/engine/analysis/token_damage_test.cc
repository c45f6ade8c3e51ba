#include "server/engine/analysis/token_damage.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <vector>

#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

constexpr int32_t kDamageBlocks = 20, kBlockTokens = 300, kDamageVocabulary = 200;

// A text of tokens drawn evenly, with δCE of a known mean by token and noise.
struct PlantedText {
  Occurrences occurrences;
  std::vector<double> delta;
  std::vector<BlockMask> halves;

  template <typename MeanOf>
  PlantedText(uint64_t seed, double noise, const MeanOf& mean_of) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<int32_t> tokens, blocks;
    for (int32_t i = 0; i < kDamageBlocks * kBlockTokens; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % kDamageVocabulary));
      blocks.push_back(i / kBlockTokens);
      delta.push_back(mean_of(tokens.back()) + noise * normal(random));
    }
    occurrences = Occurrences::Of(tokens, std::move(blocks), kDamageBlocks);
    halves = RandomHalves(kDamageBlocks, 20, seed);
  }
  TokenDamage Damage() const { return {occurrences, delta, halves}; }
};

std::vector<int32_t> Listed(const PlantedText& text, const NoFlyMethod& rule) {
  const std::vector<TokenMean> means = MeansByToken(text.occurrences, text.delta);
  std::vector<int32_t> listed;
  for (size_t i = 0; i < means.size(); ++i) {
    if (IsListed(means[i], rule)) listed.push_back(text.occurrences.tokens[i]);
  }
  return listed;
}

// Tokens 7 and 80 are harmed everywhere.
double Harmed(int32_t token) { return token == 7 || token == 80 ? 0.5 : -0.1; }

TEST(TokenDamage, TheRuleNamesExactlyThePlantedTokens) {
  const PlantedText text(1, 0.1, Harmed);
  EXPECT_THAT(Listed(text, {}), ::testing::ElementsAre(7, 80));
  EXPECT_LT(ListedByChance(text.occurrences, text.delta, {}, 20, 1), 0.2);
}

TEST(TokenDamage, EveryClauseOfTheRuleCounts) {
  const NoFlyMethod rule;
  EXPECT_TRUE(IsListed({10, 0.06, 0.7}, rule));
  EXPECT_FALSE(IsListed({9, 0.06, 0.7}, rule));
  EXPECT_FALSE(IsListed({10, 0.05, 0.7}, rule));
  EXPECT_FALSE(IsListed({10, 0.06, 0.6}, rule));
  EXPECT_FALSE(IsListed({0, std::nan(""), 0}, rule));
}

TEST(TokenDamage, MeansAreOfTheirTokenAndSide) {
  const std::vector<int32_t> tokens = {5, 9, 5, 5};
  const std::vector<double> delta = {1, -2, 3, -1};
  const Occurrences occurrences = Occurrences::Of(tokens, {0, 0, 1, 1}, 2);
  EXPECT_THAT(occurrences.tokens, ::testing::ElementsAre(5, 9));
  const std::vector<TokenMean> all = MeansByToken(occurrences, delta);
  EXPECT_EQ(all[0].count, 3);
  EXPECT_DOUBLE_EQ(all[0].mean, 1);
  EXPECT_DOUBLE_EQ(all[0].positive, 2.0 / 3);
  EXPECT_DOUBLE_EQ(all[1].mean, -2);
  const std::vector<TokenMean> second = MeansByToken(occurrences, delta, {0, 1}, true);
  EXPECT_EQ(second[0].count, 2);
  EXPECT_DOUBLE_EQ(second[0].mean, 1);
  EXPECT_EQ(second[1].count, 0);
  EXPECT_TRUE(std::isnan(second[1].mean));
}

TEST(TokenDamage, TextsThatAgreeReachTheNoiseCeiling) {
  const auto mean_of = [](int32_t token) { return 0.3 * std::sin(static_cast<double>(token)); };
  const PlantedText first(1, 1, mean_of), second(2, 1, mean_of);
  const Agreement agreement = CompareTexts(first.Damage(), second.Damage(), {});
  // 30 occurrences a token: the means' variance is 0.045 true and 0.033 noise.
  const double reliability = 0.045 / (0.045 + 1.0 / 30);
  EXPECT_NEAR(agreement.reliability_first, reliability, 0.1);
  EXPECT_NEAR(agreement.reliability_second, reliability, 0.1);
  EXPECT_NEAR(agreement.ceiling, std::sqrt(agreement.reliability_first * agreement.reliability_second), 1e-12);
  EXPECT_NEAR(agreement.r_shared, agreement.ceiling, 0.12);
  EXPECT_LT(agreement.r_shared, 0.85);
  EXPECT_EQ(agreement.shared, kDamageVocabulary);
}

TEST(TokenDamage, AListThatAnotherTextContradictsFlips) {
  const PlantedText first(1, 0.1, Harmed);
  const PlantedText opposite(2, 0.1, [](int32_t token) { return token == 7 ? -0.4 : Harmed(token); });
  const Agreement agreement = CompareTexts(first.Damage(), opposite.Damage(), {});
  EXPECT_EQ(agreement.listed, 2);
  EXPECT_EQ(agreement.judged, 2);
  EXPECT_EQ(agreement.flipped, 1);
  EXPECT_EQ(CompareTexts(opposite.Damage(), first.Damage(), {}).listed, 1);
}

TEST(TokenDamage, NoiseIsHardlyListedAndAgreesWithNothing) {
  const auto nothing = [](int32_t) { return -0.05; };
  const PlantedText first(3, 0.3, nothing), second(4, 0.3, nothing);
  EXPECT_LE(Listed(first, {}).size(), 2 + 2 * ListedByChance(first.occurrences, first.delta, {}, 20, 1));
  const Agreement agreement = CompareTexts(first.Damage(), second.Damage(), {});
  EXPECT_LT(std::abs(agreement.r_shared), 0.2);
  EXPECT_LT(agreement.reliability_first, 0.4);
}

TEST(TokenDamage, HalvesOfOneTextAgreeAsTheirMeansDo) {
  const PlantedText text(1, 0.1, Harmed);
  const Agreement halves = CompareHalves(text.Damage(), {.least_count = 4});
  EXPECT_NEAR(halves.listed, 2, 1e-9);
  EXPECT_NEAR(halves.judged, 2, 1e-9);
  EXPECT_EQ(halves.flipped, 0);
  EXPECT_GT(halves.r_shared, 0.8);
  EXPECT_TRUE(std::isnan(halves.ceiling));
  for (const BlockMask& half : text.halves) EXPECT_EQ(std::count(half.begin(), half.end(), 1), kDamageBlocks / 2);
}

TEST(TokenDamage, ReliabilityIsSpearmanBrownOfTheHalves) {
  const PlantedText text(1, 1, [](int32_t token) { return 0.01 * token; });
  const std::vector<BlockMask> one(text.halves.begin(), text.halves.begin() + 1);
  const std::vector<TokenMean> in = MeansByToken(text.occurrences, text.delta, one[0], true);
  const std::vector<TokenMean> out = MeansByToken(text.occurrences, text.delta, one[0], false);
  std::vector<double> x, y;
  for (size_t i = 0; i < in.size(); ++i) {
    x.push_back(in[i].mean);
    y.push_back(out[i].mean);
  }
  EXPECT_DOUBLE_EQ(Reliability({text.occurrences, text.delta, one}, text.occurrences.tokens),
                   SpearmanBrown(Pearson(x, y)));
}

}  // namespace
}  // namespace gatehouse
