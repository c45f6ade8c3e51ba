#include "server/engine/analysis/neuron_discovery.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

namespace gatehouse {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kTokens = 4000;
constexpr int kNeurons = 64;

// A quarter linear, a twentieth high, in an order that means nothing.
std::vector<Regime> SomeRegimes() {
  std::vector<Regime> regimes;
  for (int64_t i = 0; i < kTokens; ++i) {
    const int64_t k = i * 7 % 20;
    regimes.push_back(k == 0 ? Regime::kHigh : k <= 5 ? Regime::kLinear : Regime::kOther);
  }
  return regimes;
}

std::vector<int> Indices(const std::vector<NeuronFinding>& findings) {
  std::vector<int> indices;
  for (const NeuronFinding& finding : findings) indices.push_back(finding.neuron);
  return indices;
}

// Neurons that fire by chance, at rates from 0.05 to 0.95.
at::Tensor ChanceFiring() {
  at::manual_seed(9);
  return at::rand({kTokens, kNeurons}) < at::linspace(0.05, 0.95, kNeurons);
}

// Neuron 5 is silent exactly in the high regime, neuron 9 for most of it; neuron 30 fires
// exactly there.
at::Tensor PlantedFiring(const std::vector<Regime>& regimes) {
  at::Tensor firing = ChanceFiring();
  for (int64_t i = 0; i < kTokens; ++i) {
    const bool high = regimes[i] == Regime::kHigh;
    firing[i][5] = !high;
    firing[i][9] = !high || i % 400 == 0;
    firing[i][30] = high;
  }
  return firing;
}

TEST(NeuronDiscovery, FindsExactlyThePlantedNeurons) {
  const std::vector<Regime> regimes = SomeRegimes();
  const NeuronFindings findings = DiscoverNeurons(PlantedFiring(regimes), regimes, 7);
  EXPECT_THAT(Indices(findings.consensus), ElementsAre(5, 9));
  EXPECT_THAT(Indices(findings.exception), ElementsAre(30));
  EXPECT_DOUBLE_EQ(findings.consensus[0].base_rate, 0.95);
  EXPECT_DOUBLE_EQ(findings.consensus[0].rate_difference, -1);
  EXPECT_DOUBLE_EQ(findings.exception[0].base_rate, 0.05);
  EXPECT_DOUBLE_EQ(findings.exception[0].rate_difference, 1);
}

TEST(NeuronDiscovery, LeavesOutNeuronsOfAnOrdinaryBaseRate) {
  // Neuron 11 fires in all high tokens and too many others; neuron 50 falls silent in all of
  // them, but fires too seldom elsewhere.
  const std::vector<Regime> regimes = SomeRegimes();
  at::Tensor firing = PlantedFiring(regimes);
  for (int64_t i = 0; i < kTokens; ++i) {
    const bool high = regimes[i] == Regime::kHigh;
    firing[i][11] = high || i % 10 < 3;
    firing[i][50] = !high && i % 10 < 6;
  }
  const NeuronFindings findings = DiscoverNeurons(firing, regimes, 7);
  EXPECT_THAT(Indices(findings.consensus), ElementsAre(5, 9));
  EXPECT_THAT(Indices(findings.exception), ElementsAre(30));
}

TEST(NeuronDiscovery, KeepsAtMostTheGivenNumberOfConsensusNeurons) {
  const std::vector<Regime> regimes = SomeRegimes();
  EXPECT_THAT(Indices(DiscoverNeurons(PlantedFiring(regimes), regimes, 1).consensus), ElementsAre(5));
}

TEST(NeuronDiscovery, NamesTheGatewayOfTheEnrichedPatterns) {
  // Eight neurons in all, so the patterns are over exactly these: 3 fires in every high
  // token, 6 in every other one, the rest never.
  const std::vector<Regime> regimes = SomeRegimes();
  at::Tensor firing = at::zeros({kTokens, 8}, at::kBool);
  int64_t high = 0;
  for (int64_t i = 0; i < kTokens; ++i) {
    if (regimes[i] != Regime::kHigh) continue;
    firing[i][3] = true;
    firing[i][6] = ++high % 2 == 0;
  }
  EXPECT_THAT(Indices(DiscoverNeurons(firing, regimes, 7).gateway), ElementsAre(3));
}

TEST(NeuronDiscovery, IgnoresPatternsOfFewerThanFiftyTokens) {
  std::vector<Regime> regimes(kTokens, Regime::kLinear);
  at::Tensor firing = at::zeros({kTokens, 8}, at::kBool);
  for (int64_t i = 0; i < 49; ++i) {
    regimes[i] = Regime::kHigh;
    firing[i][3] = true;
  }
  EXPECT_THAT(DiscoverNeurons(firing, regimes, 7).gateway, IsEmpty());
  regimes[49] = Regime::kHigh;
  firing[49][3] = true;
  EXPECT_THAT(Indices(DiscoverNeurons(firing, regimes, 7).gateway), ElementsAre(3));
}

TEST(NeuronDiscovery, FindsNothingWhereNothingIsPlanted) {
  const std::vector<Regime> regimes = SomeRegimes();
  const NeuronFindings findings = DiscoverNeurons(ChanceFiring(), regimes, 7);
  EXPECT_THAT(findings.consensus, IsEmpty());
  EXPECT_THAT(findings.exception, IsEmpty());
}

TEST(NeuronDiscovery, ShuffledRegimesNameNothingOfThePlantedStructure) {
  const std::vector<Regime> regimes = SomeRegimes();
  const FindingCounts null = ShuffledFindings(PlantedFiring(regimes), regimes, 7, 20, 1);
  EXPECT_EQ(null.consensus, 0);
  EXPECT_EQ(null.exception, 0);
  EXPECT_LE(null.gateway, 8);
}

TEST(NeuronDiscovery, FindsNothingInRegimesOfFewerThanTwentyTokens) {
  std::vector<Regime> regimes(kTokens, Regime::kOther);
  at::Tensor firing = at::zeros({kTokens, 8}, at::kBool);
  for (int64_t i = 0; i < 38; ++i) {
    regimes[i] = i % 2 == 0 ? Regime::kHigh : Regime::kLinear;
    firing[i][2] = i % 2 == 0;
  }
  EXPECT_THAT(DiscoverNeurons(firing, regimes, 7).exception, IsEmpty());
  regimes[38] = Regime::kHigh;
  regimes[39] = Regime::kLinear;
  firing[38][2] = true;
  EXPECT_THAT(Indices(DiscoverNeurons(firing, regimes, 7).exception), ElementsAre(2));
}

TEST(NeuronDiscovery, TakesAnMlpOfFewerThanEightNeurons) {
  const std::vector<Regime> regimes = SomeRegimes();
  EXPECT_THAT(Indices(DiscoverNeurons(PlantedFiring(regimes).narrow(1, 5, 3), regimes, 7).consensus), ElementsAre(0));
}

}  // namespace
}  // namespace gatehouse
