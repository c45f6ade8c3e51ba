#include "server/engine/analysis/routability_gates.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>

#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

constexpr int64_t kBlocks = 90, kWindow = 65, kWidth = 24, kVocabulary = 60;

// Tokens whose context is drawn, a residual stream of both, and δCE that follows what a test
// says.
struct Planted {
  RoutabilityTokens tokens;
  at::Tensor embedding, context;  // [tokens, kWidth]

  explicit Planted(uint64_t seed, bool context_follows_identity = false) {
    at::manual_seed(seed);
    ModelConfig config;
    const NormWeights norm{at::rand({kWidth}) + 0.5, at::randn({kWidth})};
    tokens.ids = at::randint(kVocabulary, {kBlocks, kWindow}, at::kLong);
    const at::Tensor table = at::randn({kVocabulary, kWidth}), written = at::randn({kVocabulary, kWidth});
    const at::Tensor ids = tokens.ids.flatten();
    embedding = table.index_select(0, ids);
    context = context_follows_identity ? written.index_select(0, ids) : at::randn_like(embedding);
    const at::Tensor residual = embedding + context;
    tokens.full = at::layer_norm(residual, {kWidth}, norm.weight, norm.bias, config.norm_eps);
    tokens.split = SplitNorm(config, norm, residual, embedding);
    tokens.token = embedding;
    tokens.target = table.index_select(0, ids.roll(-1));
    tokens.kept = at::ones({kBlocks, kWindow}, at::kBool);
    for (int64_t block = 0; block < kBlocks; ++block) tokens.tests.push_back(block % 3 == 0 ? block / 3 : -1);
  }

  // decides: [tokens, kWidth], of which one direction makes δCE, with some noise.
  RoutabilityFindings Judge(const at::Tensor& decides, double noise = 0.3) {
    const at::Tensor direction = at::randn({kWidth}) / std::sqrt(static_cast<double>(kWidth));
    const at::Tensor delta = at::mv(decides, direction).view({kBlocks, kWindow}).narrow(1, 0, kWindow - 1);
    tokens.delta = (delta + noise * at::randn_like(delta)).to(at::kDouble);
    auto findings = JudgeRoutability(tokens, 2000, 1, [] { return absl::OkStatus(); });
    EXPECT_TRUE(findings.ok()) << findings.status();
    return *std::move(findings);
  }
};

std::map<std::string, Interval> Aucs(const RoutabilityFindings& findings) {
  std::map<std::string, Interval> aucs;
  for (const GateFinding& gate : findings.gates) aucs[gate.name] = gate.auc;
  for (const GateDifference& difference : findings.differences) aucs[difference.name] = difference.auc;
  return aucs;
}

// Of dozens of 95 % intervals some miss by chance; none is half a width away.
bool Covers(const Interval& interval, double value) {
  const double slack = (interval.high - interval.low) / 2;
  return interval.low - slack <= value && value <= interval.high + slack;
}

TEST(SplitNorm, IsExactForBothNorms) {
  at::manual_seed(1);
  const at::Tensor e = at::randn({50, kWidth}) * 3, c = at::randn({50, kWidth}) + 1, r = e + c;
  ModelConfig config;
  const NormWeights layer_norm{at::rand({kWidth}) + 0.5, at::randn({kWidth})};
  const NormSplit split = SplitNorm(config, layer_norm, r, e);
  const at::Tensor x = at::layer_norm(r, {kWidth}, layer_norm.weight, layer_norm.bias, config.norm_eps);
  EXPECT_LT((split.identity + split.context + layer_norm.bias - x).abs().max().item<float>(), 1e-5);

  config.norm = NormKind::kRmsNorm;
  const NormWeights rms{at::rand({kWidth}) + 0.5, {}};
  const NormSplit parts = SplitNorm(config, rms, r, e);
  const at::Tensor y = rms.weight * (r * at::rsqrt((r * r).mean(-1, true) + config.norm_eps));
  EXPECT_LT((parts.identity + parts.context - y).abs().max().item<float>(), 1e-5);
}

TEST(Routability, ATargetOfIdentityAloneIsSeenByIdentityAlone) {
  Planted planted(2);
  const auto auc = Aucs(planted.Judge(planted.embedding));
  EXPECT_GT(auc.at("identity").low, 0.85);
  EXPECT_GT(auc.at("token").low, 0.85);
  EXPECT_GT(auc.at("full").low, 0.6);
  EXPECT_TRUE(Covers(auc.at("context"), 0.5)) << auc.at("context").estimate;
  EXPECT_TRUE(Covers(auc.at("context, shuffled"), 0.5));
  EXPECT_TRUE(Covers(auc.at("target"), 0.5));
  EXPECT_TRUE(Covers(auc.at("context - shuffled"), 0));
}

TEST(Routability, ATargetOfContextAloneIsSeenByContextAndLostWhenContextsAreShuffled) {
  Planted planted(3);
  const auto auc = Aucs(planted.Judge(planted.context));
  EXPECT_GT(auc.at("context").low, 0.85);
  EXPECT_TRUE(Covers(auc.at("context, shuffled"), 0.5)) << auc.at("context, shuffled").estimate;
  EXPECT_GT(auc.at("context - shuffled").low, 0.3);
  EXPECT_TRUE(Covers(auc.at("token"), 0.5));
  EXPECT_GT(auc.at("full - identity").low, 0.05);
}

TEST(Routability, AContextThatOnlyRepeatsTheIdentityIsUnmaskedByTheControl) {
  Planted planted(4, /*context_follows_identity=*/true);
  const auto auc = Aucs(planted.Judge(planted.embedding));
  EXPECT_GT(auc.at("context").low, 0.6);
  EXPECT_TRUE(Covers(auc.at("context - shuffled"), 0)) << auc.at("context - shuffled").estimate;
}

TEST(Routability, ATargetOfTheNextTokenIsSeenByNoGateThatRoutes) {
  Planted planted(5);
  const auto auc = Aucs(planted.Judge(planted.tokens.target));
  EXPECT_GT(auc.at("target").low, 0.85);
  EXPECT_GT(auc.at("target - token").low, 0.3);
  for (const char* gate : {"identity", "context", "token"}) EXPECT_TRUE(Covers(auc.at(gate), 0.5)) << gate;
}

TEST(Routability, ShuffledLabelsAreSeenByNoGate) {
  Planted planted(6);
  const RoutabilityFindings findings = planted.Judge(at::randn({kBlocks * kWindow, kWidth}));
  for (const GateFinding& gate : findings.gates) EXPECT_TRUE(Covers(gate.auc, 0.5)) << gate.name;
  ASSERT_EQ(findings.gates.size(), static_cast<size_t>(kRoutabilityGates));
  EXPECT_NEAR(findings.gates[0].base_rate, 0.5, 0.05);
  // A block's last token predicts nothing.
  EXPECT_EQ(findings.gates[0].train_tokens + findings.gates[0].test_tokens, kBlocks * (kWindow - 1));
}

TEST(Routability, SinksAreInNoPart) {
  Planted planted(7);
  planted.tokens.kept.narrow(1, 0, 4).fill_(false);
  const RoutabilityFindings findings = planted.Judge(planted.embedding);
  EXPECT_EQ(findings.gates[0].train_tokens + findings.gates[0].test_tokens, kBlocks * (kWindow - 5));
  planted.tokens.kept.fill_(false);
  EXPECT_THAT(JudgeRoutability(planted.tokens, 100, 1, [] { return absl::OkStatus(); }),
              testing::StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::_));
}

TEST(Routability, OneClassAmongTheTestsHasNoAuc) {
  Planted planted(8);
  planted.tokens.delta = at::zeros({kBlocks, kWindow - 1}, at::kDouble);
  const auto findings = JudgeRoutability(planted.tokens, 100, 1, [] { return absl::OkStatus(); });
  ASSERT_TRUE(findings.ok());
  EXPECT_TRUE(std::isnan(findings->gates[0].auc.estimate));
  EXPECT_EQ(findings->gates[0].base_rate, 1);
}

TEST(Partners, AreOthersOfTheSameIdentityEachOnce) {
  const std::vector<int64_t> identities = {3, 5, 3, 8, 5, 3, 9};
  const std::vector<int64_t> partners = PartnersOfEqualIdentity(identities, 1);
  std::set<int64_t> seen;
  for (size_t i = 0; i < identities.size(); ++i) {
    if (identities[i] == 8 || identities[i] == 9) {
      EXPECT_EQ(partners[i], -1);
      continue;
    }
    ASSERT_GE(partners[i], 0);
    EXPECT_NE(partners[i], static_cast<int64_t>(i));
    EXPECT_EQ(identities[partners[i]], identities[i]);
    EXPECT_TRUE(seen.insert(partners[i]).second);
  }
}

}  // namespace
}  // namespace gatehouse
