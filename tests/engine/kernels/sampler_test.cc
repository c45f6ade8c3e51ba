#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "server/engine/kernels/sampling_math.h"
#include "tests/engine/kernels/kernel_sets.h"
#include "tests/engine/kernels/sampling_params.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AvailableKernels;
using ::gatehouse::testing::kNan;
using ::gatehouse::testing::Make;
using ::gatehouse::testing::StatusIs;
using ::gatehouse::testing::WithTemperature;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SamplingState State(const SamplingParams& params, int vocab) { return SamplingState::Create(params, vocab).value(); }

class Sampler : public ::testing::TestWithParam<std::string> {
 protected:
  SampledToken Sample(const at::Tensor& logits, SamplingState& state, int top = 0) const {
    return kernels_->Sample(logits, state, top).value();
  }
  SampledToken Sample(const at::Tensor& logits, const SamplingParams& params, int top = 0) const {
    SamplingState state = State(params, static_cast<int>(logits.size(0)));
    return Sample(logits, state, top);
  }
  // How often each token comes in `draws` draws of one sampler.
  std::vector<int> Count(const at::Tensor& logits, const SamplingParams& params, int draws) const {
    std::vector<int> counts(logits.size(0));
    SamplingState state = State(params, static_cast<int>(logits.size(0)));
    for (int i = 0; i < draws; ++i) ++counts[Sample(logits, state).token.id];
    return counts;
  }

  const std::unique_ptr<Kernels> kernels_ = Make(GetParam());
};

// Of both signs, none of them equal.
at::Tensor FiveLogits() { return at::tensor({2.0F, -2.0F, 1.0F, -1.0F, 0.5F}); }

TEST_P(Sampler, TinyTemperaturesTakeTheMostLikelyToken) {
  for (const float temperature : {0.0F, 1e-45F, 1e-38F, 1e-30F, 1e-5F}) {
    SamplingParams params;
    params.temperature = temperature;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      params.seed = seed;
      const SampledToken sampled = Sample(FiveLogits(), params);
      ASSERT_EQ(sampled.token.id, 0) << temperature;
      ASSERT_NEAR(sampled.token.logprob, -0.506283F, 1e-5);  // at temperature 1, whatever was sampled with
    }
  }
}

TEST_P(Sampler, TiesOfTheMostLikelyGoToTheLowestId) {
  EXPECT_EQ(Sample(at::tensor({0.0F, 3.0F, 1.0F, 3.0F}), WithTemperature(0)).token.id, 1);
}

TEST_P(Sampler, TopPOfAlmostNothingKeepsOneToken) {
  for (const float top_p : {0.0F, 1e-9F}) {
    SamplingParams params;
    params.top_p = top_p;
    EXPECT_THAT(Count(FiveLogits(), params, 50), ElementsAre(50, 0, 0, 0, 0));
  }
}

TEST_P(Sampler, TopPOfOneKeepsAll) {
  const auto counts = Count(at::zeros({6}), {}, 600);
  for (const int count : counts) EXPECT_GT(count, 50);
}

TEST_P(Sampler, ThePenaltyLowersLogitsOfEitherSign) {
  // With seen ids 0 and 1 and penalty 1.5 the logits are [1.3333, -3, 1, -1, 0.5].
  SamplingParams params;
  params.repetition_penalty = 1.5;
  std::vector<double> expected = {4.0 / 3, -3, 1, -1, 0.5};
  double sum = 0;
  for (double& logit : expected) sum += std::exp(logit);
  std::vector<int> counts(5);
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    SamplingParams seeded = params;
    seeded.seed = i;
    SamplingState state = State(seeded, 5);
    state.Observe(std::vector<int32_t>{0, 1, 0});
    ++counts[Sample(FiveLogits(), state).token.id];
  }
  double chi_square = 0;
  for (int i = 0; i < 5; ++i) {
    const double count = kDraws * std::exp(expected[i]) / sum;
    chi_square += (counts[i] - count) * (counts[i] - count) / count;
  }
  EXPECT_LT(chi_square, 18.5);  // 4 degrees of freedom, p = 0.001
}

TEST_P(Sampler, ObservesWhatItSamples) {
  SamplingParams params = WithTemperature(0);
  params.repetition_penalty = 100;
  SamplingState state = State(params, 4);
  const at::Tensor logits = at::tensor({1.0F, 4.0F, 3.0F, 2.0F});
  for (const int expected : {1, 2, 3, 0}) EXPECT_EQ(Sample(logits, state).token.id, expected);
  EXPECT_THAT(state.seen(), ElementsAre(1, 2, 3, 0));
}

TEST_P(Sampler, ABiasOfMinusInfinityIsNeverSampled) {
  SamplingParams params;
  params.logit_bias = {{0, -kInfinity}, {2, -kInfinity}};
  const auto counts = Count(FiveLogits(), params, 500);
  EXPECT_EQ(counts[0], 0);
  EXPECT_EQ(counts[2], 0);
  EXPECT_GT(counts[4], counts[1]);
  params.temperature = 0;
  EXPECT_EQ(Sample(FiveLogits(), params).token.id, 4);
}

TEST_P(Sampler, BiasesComeBeforeThePenalty) {
  SamplingParams params = WithTemperature(0);
  params.repetition_penalty = 2;
  params.logit_bias = {{0, 5.0F}};
  SamplingState state = State(params, 2);
  state.Observe(std::vector<int32_t>{0});
  // (−1 + 5) / 2 = 2 < 2.5; the other way round −2 + 5 = 3 would win.
  EXPECT_EQ(Sample(at::tensor({-1.0F, 2.5F}), state).token.id, 1);
}

TEST_P(Sampler, HugeBiasesAndPenaltiesStayNumbers) {
  SamplingParams params;
  params.logit_bias = {{1, std::numeric_limits<float>::max()}};
  params.repetition_penalty = 1e-38F;
  SamplingState state = State(params, 3);
  state.Observe(std::vector<int32_t>{1});
  EXPECT_EQ(Sample(at::tensor({1.0F, 1e38F, -kInfinity}), state).token.id, 1);
  params.repetition_penalty = 1e38F;
  params.logit_bias = {};
  params.temperature = 0;
  SamplingState lowered = State(params, 2);
  lowered.Observe(std::vector<int32_t>{0, 1});
  EXPECT_EQ(Sample(at::tensor({-2e5F, -1e5F}), lowered).token.id, 0);  // both at the lowest number: the first
}

TEST_P(Sampler, MinusInfinityInTheLogitsIsNeverSampledAndKeepsTheOthersRight) {
  const at::Tensor logits = at::tensor({0.0F, -1e4F, -kInfinity});
  const SampledToken sampled = Sample(logits, {}, 3);
  EXPECT_EQ(sampled.token.id, 0);
  EXPECT_FLOAT_EQ(sampled.token.logprob, 0);
  ASSERT_EQ(sampled.top.size(), 3);
  EXPECT_EQ(sampled.top[1].id, 1);
  EXPECT_FLOAT_EQ(sampled.top[1].logprob, -1e4F);
  EXPECT_EQ(sampled.top[2].id, 2);
  EXPECT_EQ(sampled.top[2].logprob, -kInfinity);
}

TEST_P(Sampler, BrokenLogitsAreAnErrorThatNamesThem) {
  for (const float bad : {kNan, kInfinity}) {
    for (const int64_t place : {0, 7, 18}) {
      for (const float temperature : {0.0F, 1.0F}) {
        at::Tensor logits = at::zeros({19});
        logits[place] = bad;
        SamplingState state = State(WithTemperature(temperature), 19);
        EXPECT_THAT(kernels_->Sample(logits, state, 1), StatusIs(absl::StatusCode::kInternal, HasSubstr("NaN")));
        EXPECT_THAT(state.seen(), IsEmpty());
      }
    }
  }
}

TEST_P(Sampler, NothingToSampleIsAnError) {
  SamplingState state = State({}, 3);
  EXPECT_THAT(kernels_->Sample(at::full({3}, -kInfinity), state, 0),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("-infinity")));
  SamplingParams params;
  params.logit_bias = {{0, -kInfinity}};
  SamplingState biased = State(params, 2);
  EXPECT_THAT(kernels_->Sample(at::tensor({0.0F, -kInfinity}), biased, 0),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("-infinity")));
}

TEST_P(Sampler, TopKAndMinPCutTheTail) {
  SamplingParams top_k;
  top_k.top_k = 2;
  const auto k = Count(FiveLogits(), top_k, 300);
  EXPECT_EQ(k[1] + k[3] + k[4], 0);
  EXPECT_GT(k[2], 30);
  // p / p_max is e^(l − 2): 1, 0.018, 0.37, 0.05, 0.22.
  SamplingParams min_p;
  min_p.min_p = 0.2F;
  const auto m = Count(FiveLogits(), min_p, 300);
  EXPECT_EQ(m[1] + m[3], 0);
  EXPECT_GT(m[4], 10);
  SamplingParams only;
  only.min_p = 1;
  EXPECT_THAT(Count(FiveLogits(), only, 20), ElementsAre(20, 0, 0, 0, 0));
}

TEST_P(Sampler, TopKBreaksTiesByTheLowerId) {
  SamplingParams params;
  params.top_k = 2;
  const auto counts = Count(at::tensor({1.0F, 5.0F, 5.0F, 5.0F}), params, 100);
  EXPECT_EQ(counts[0] + counts[3], 0);
}

TEST_P(Sampler, TopPIsOfWhatTopKLeft) {
  // Of the three kept, the first two have 0.4 / 0.9 + 0.3 / 0.9 = 0.78 of the weight.
  const at::Tensor logits = at::tensor({0.4F, 0.3F, 0.2F, 0.1F}).log();
  SamplingParams params;
  params.top_k = 3;
  params.top_p = 0.75F;
  const auto counts = Count(logits, params, 400);
  EXPECT_EQ(counts[2] + counts[3], 0);
  EXPECT_GT(counts[1], 100);
}

TEST_P(Sampler, TemperatureComesBeforeTopP) {
  // At temperature 2 the first token has weight 0.6 only, and two are needed.
  const at::Tensor logits = at::tensor({0.0F, -1.0F, -20.0F});
  SamplingParams params = WithTemperature(2);
  params.top_p = 0.7F;
  EXPECT_GT(Count(logits, params, 300)[1], 60);
}

// The share of each token is its probability: chi-square with a fixed seed.
TEST_P(Sampler, DrawsFollowTheDistribution) {
  at::manual_seed(11);
  const at::Tensor logits = at::randn({40}) * 1.5;
  for (const float temperature : {0.7F, 1.0F, 3.0F}) {
    constexpr int kDraws = 20'000;
    SamplingParams params = WithTemperature(temperature);
    params.seed = 5;
    const auto counts = Count(logits, params, kDraws);
    const at::Tensor expected = at::softmax(logits.to(at::kDouble) / temperature, 0) * kDraws;
    double chi_square = 0;
    double rest = 0, rest_expected = 0;
    int cells = 0;
    for (int64_t id = 0; id < 40; ++id) {
      const double count = expected[id].item<double>();
      if (count < 8) {
        rest += counts[id];
        rest_expected += count;
        continue;
      }
      chi_square += (counts[id] - count) * (counts[id] - count) / count;
      ++cells;
    }
    if (rest_expected > 0) chi_square += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    // Mean cells, standard deviation √(2 cells): four of them.
    EXPECT_LT(chi_square, cells + 4 * std::sqrt(2.0 * cells)) << temperature;
  }
}

TEST_P(Sampler, AlternativesAreTheMostLikelyFirst) {
  const at::Tensor logits = at::tensor({1.0F, 3.0F, 2.0F, 3.0F});
  const double normalizer = at::logsumexp(logits.to(at::kDouble), 0).item<double>();
  SamplingParams params;
  params.logit_bias = {{0, 50.0F}};  // what is reported is the model's own distribution
  const SampledToken sampled = Sample(logits, params, 3);
  EXPECT_EQ(sampled.token.id, 0);
  EXPECT_NEAR(sampled.token.logprob, 1 - normalizer, 1e-6);
  ASSERT_EQ(sampled.top.size(), 3);
  const int ids[] = {1, 3, 2};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sampled.top[i].id, ids[i]);
    EXPECT_NEAR(sampled.top[i].logprob, logits[ids[i]].item<double>() - normalizer, 1e-6);
  }
  EXPECT_EQ(Sample(logits, params, 20).top.size(), 4);
}

TEST_P(Sampler, TheSameSeedGivesTheSameTokens) {
  at::manual_seed(12);
  const at::Tensor logits = at::randn({1000});
  const auto run = [&](uint64_t seed) {
    SamplingParams params;
    params.seed = seed;
    SamplingState state = State(params, 1000);
    std::vector<int> ids;
    for (int i = 0; i < 30; ++i) ids.push_back(Sample(logits, state).token.id);
    return ids;
  };
  EXPECT_EQ(run(0), run(0));
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(0), run(7));
}

// All kernels pick the same token from the same logits and draw.
TEST_P(Sampler, AgreesWithThePortableKernels) {
  at::manual_seed(13);
  const auto reference = Make("portable");
  for (int round = 0; round < 300; ++round) {
    const int vocab = round % 3 == 0 ? 37 : 5000;
    at::Tensor logits = at::randn({vocab}) * 3;
    if (round % 5 == 0) logits = (logits * 2).round();  // many ties
    SamplingParams params = WithTemperature(round % 4 == 0 ? 0.5F : 1.3F);
    if (round % 2 == 0) params.top_k = 1 + round % 60;
    if (round % 3 != 1) params.top_p = 0.05F + 0.003F * static_cast<float>(round);
    if (round % 7 == 0) params.min_p = 0.02F;
    if (round % 4 == 1) params.repetition_penalty = 1.3F;
    if (round % 6 == 0) params.logit_bias = {{3, 2.0F}, {30, -kInfinity}};
    params.seed = round;
    SamplingState a = State(params, vocab);
    SamplingState b = State(params, vocab);
    for (int draw = 0; draw < 3; ++draw) {
      const SampledToken ours = Sample(logits, a, 5);
      const SampledToken theirs = reference->Sample(logits, b, 5).value();
      ASSERT_EQ(ours.token.id, theirs.token.id) << "round " << round;
      ASSERT_NEAR(ours.token.logprob, theirs.token.logprob, 1e-5);
      for (int i = 0; i < 5; ++i) ASSERT_EQ(ours.top[i].id, theirs.top[i].id);
    }
  }
}

TEST_P(Sampler, LogprobsAreThoseOfTheTargets) {
  at::manual_seed(14);
  const at::Tensor logits = at::randn({5, 301}) * 4;
  const std::vector<int32_t> targets = {300, -1, 0, 17, -1};
  const auto result = kernels_->Logprobs(logits, targets, 4).value();
  const at::Tensor expected = at::log_softmax(logits.to(at::kDouble), 1);
  ASSERT_EQ(result.logprobs.size(), 5);
  ASSERT_EQ(result.top.size(), 5);
  for (int row = 0; row < 5; ++row) {
    if (targets[row] < 0) {
      EXPECT_TRUE(std::isnan(result.logprobs[row]));
      EXPECT_THAT(result.top[row], IsEmpty());
      continue;
    }
    EXPECT_NEAR(result.logprobs[row], expected[row][targets[row]].item<double>(), 1e-5);
    ASSERT_EQ(result.top[row].size(), 4);
    const at::Tensor best = std::get<1>(at::topk(logits[row], 4));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(result.top[row][i].id, best[i].item<int64_t>());
  }
}

TEST_P(Sampler, LogprobsAreStable) {
  const at::Tensor logits = at::tensor({0.0F, -1e4F, -kInfinity}).expand({3, 3}).contiguous();
  const auto result = kernels_->Logprobs(logits, std::vector<int32_t>{0, 1, 2}, 0).value();
  EXPECT_THAT(result.logprobs, ElementsAre(0.0F, -1e4F, -kInfinity));
}

TEST_P(Sampler, LogprobsRefuseBrokenRowsAndUnknownTargets) {
  at::Tensor logits = at::zeros({2, 5});
  EXPECT_THAT(kernels_->Logprobs(logits, std::vector<int32_t>{0, 5}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5")));
  logits[1][2] = kNan;
  EXPECT_THAT(kernels_->Logprobs(logits, std::vector<int32_t>{0, 1}, 0),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("NaN")));
  EXPECT_TRUE(kernels_->Logprobs(logits, std::vector<int32_t>{0, -1}, 0).ok());  // not looked at
}

INSTANTIATE_TEST_SUITE_P(All, Sampler, ::testing::ValuesIn(AvailableKernels()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace gatehouse
