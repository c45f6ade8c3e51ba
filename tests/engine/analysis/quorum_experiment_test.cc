#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/engine/analysis/planted_consensus.h"

namespace gatehouse {
namespace {

using testing::ExpectSound;
using ::testing::HasSubstr;
using testing::Integers;
using ::testing::IsEmpty;
using testing::kPlantedLayer;
using testing::Load;
using testing::LoadWithMemory;
using testing::Numbers;
using testing::Planting;
using testing::RunOn;
using testing::Spec;
using testing::Strings;
using testing::Table;
using testing::Text;
using testing::TextToRemember;

class Quorum : public ::testing::TestWithParam<Planting> {};

TEST_P(Quorum, GivesExactlyThePlantedRoutesAndTheirWork) {
  const auto [planted, noise] = GetParam();
  ExperimentSpec spec = Spec(QuorumMethod{});
  spec.options.layers = {kPlantedLayer};
  const ModelWeights model = LoadWithMemory({.consensus = planted, .noise = noise});
  const auto result = RunOn(model, spec, {TextToRemember(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  at::Tensor near = ~testing::FarSide(testing::ReportTokens(model, spec, TextToRemember(1)));
  near.narrow(1, 0, 4).fill_(false);
  const double routed = near.to(at::kDouble).mean().item<double>();
  const at::Tensor level = Integers(*result, "level.1")[0];
  const ReportTable& quorums = Table(*result, "quorums");
  ASSERT_EQ(Numbers(quorums, "quorum").size(), static_cast<size_t>(2 * planted));
  for (int i = 0; i < 2 * planted; ++i) {
    const bool linear = i < planted;
    const double quorum = Numbers(quorums, "quorum")[i];
    EXPECT_EQ(quorum, i % planted + 1);
    EXPECT_EQ(Strings(quorums, "path")[i], linear ? "linear" : "skip");
    EXPECT_TRUE(level.ge(quorum).equal(near));
    EXPECT_DOUBLE_EQ(Numbers(quorums, "routed")[i], routed);
    // d 64, 256 neurons: 2·64·256 multiplications in full, 64² linear, 64 a consensus neuron.
    const double full = 2 * 64 * 256, saved = routed * (full - (linear ? 64 * 64 : 0));
    EXPECT_NEAR(Numbers(quorums, "work_saved")[i], (saved - 124.0 / 128 * planted * 64) / full, 1e-9);
  }

  const ReportTable& rules = Table(*result, "rules");
  for (size_t i = 0; i < Numbers(rules, "quorum").size(); i += 3) {
    EXPECT_EQ(Strings(rules, "rule")[i], "quorum");
    EXPECT_EQ(Strings(rules, "rule")[i + 1], "logistic");
    EXPECT_EQ(Strings(rules, "rule")[i + 2], "random");
    EXPECT_EQ(Numbers(rules, "quorum_against_it")[i], 0);
    // Both splits have the same share of words of the far side, more or less.
    EXPECT_NEAR(Numbers(rules, "work_saved")[i + 1], Numbers(rules, "work_saved")[i], 0.03);
    EXPECT_DOUBLE_EQ(Numbers(rules, "routed")[i + 2], Numbers(rules, "routed")[i]);
    // Only the far side must not be routed, and random routing does not know it.
    EXPECT_LT(Numbers(rules, "quorum_against_it_high")[i + 2], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Planted, Quorum, ::testing::ValuesIn(testing::kPlantings));

TEST(QuorumExperiment, HasNothingToRouteByInRandomWeights) {
  ExperimentSpec spec = Spec(QuorumMethod{});
  spec.options.layers = {2, 3};
  const auto result = RunOn(Load({.random_weights = true}), spec, {Text(1)});
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSound(*result);
  EXPECT_THAT(Numbers(Table(*result, "rules"), "quorum"), IsEmpty());
  EXPECT_THAT(result->report.summary, HasSubstr("0 of 2 layers have consensus neurons"));
}

}  // namespace
}  // namespace gatehouse
