#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "server/engine/kernels/sampling_math.h"
#include "server/engine/sampling.h"
#include "tests/engine/kernels/sampling_params.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::kNan;
using ::gatehouse::testing::StatusIs;
using ::gatehouse::testing::WithTemperature;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(SamplingState, RefusesTemperaturesThatAreNegativeOrNoNumber) {
  for (const float temperature : {-1.0F, -1e-30F, kNan, kInfinity, -kInfinity}) {
    EXPECT_THAT(SamplingState::Create(WithTemperature(temperature), 5), StatusIs(kInvalid, HasSubstr("temperature")));
  }
  for (const float temperature : {0.0F, 1e-45F, 1e-38F, 1e-5F, 1.0F, 100.0F}) {
    EXPECT_TRUE(SamplingState::Create(WithTemperature(temperature), 5).ok()) << temperature;
  }
}

TEST(SamplingState, RefusesProbabilitiesOutsideTheUnitInterval) {
  for (const float p : {-0.1F, 1.1F, kNan, kInfinity}) {
    SamplingParams top_p;
    top_p.top_p = p;
    EXPECT_THAT(SamplingState::Create(top_p, 5), StatusIs(kInvalid, HasSubstr("top_p must be in [0, 1]")));
    SamplingParams min_p;
    min_p.min_p = p;
    EXPECT_THAT(SamplingState::Create(min_p, 5), StatusIs(kInvalid, HasSubstr("min_p must be in [0, 1]")));
  }
  for (const float p : {0.0F, 1e-9F, 1.0F}) {
    SamplingParams params;
    params.top_p = p;
    params.min_p = p;
    EXPECT_TRUE(SamplingState::Create(params, 5).ok()) << p;
  }
}

TEST(SamplingState, RefusesBadPenaltiesAndTopK) {
  for (const float penalty : {0.0F, -1.0F, kNan, kInfinity}) {
    SamplingParams params;
    params.repetition_penalty = penalty;
    EXPECT_THAT(SamplingState::Create(params, 5), StatusIs(kInvalid, HasSubstr("repetition_penalty")));
  }
  SamplingParams params;
  params.top_k = -1;
  EXPECT_THAT(SamplingState::Create(params, 5), StatusIs(kInvalid, HasSubstr("top_k")));
}

TEST(SamplingState, RefusesBiasesOfUnknownIdsAndNoNumbers) {
  for (const int32_t id : {-1, 5, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    SamplingParams params;
    params.logit_bias = {{id, 1.0F}};
    EXPECT_THAT(SamplingState::Create(params, 5), StatusIs(kInvalid, HasSubstr("is not in [0, 5)"))) << id;
  }
  for (const float bias : {kNan, kInfinity}) {
    SamplingParams params;
    params.logit_bias = {{2, bias}};
    EXPECT_THAT(SamplingState::Create(params, 5), StatusIs(kInvalid, HasSubstr("token id 2"))) << bias;
  }
}

TEST(SamplingState, RefusesToExcludeEveryToken) {
  SamplingParams params;
  for (int32_t id = 0; id < 5; ++id) params.logit_bias[id] = -kInfinity;
  EXPECT_THAT(SamplingState::Create(params, 5), StatusIs(kInvalid, HasSubstr("every token")));
  params.logit_bias.erase(3);
  EXPECT_TRUE(SamplingState::Create(params, 5).ok());
}

TEST(SamplingState, RemembersEachTokenOnceInOrder) {
  SamplingState state = SamplingState::Create({}, 10).value();
  state.Observe(std::vector<int32_t>{4, 2, 4});
  state.Observe(std::vector<int32_t>{2, 9, 0, 4});
  EXPECT_THAT(state.seen(), ElementsAre(4, 2, 9, 0));
}

TEST(SamplingState, DrawsDependOnSeedAndNumberAlone) {
  std::set<double> firsts;
  for (const uint64_t seed : {0ULL, 1ULL, 2ULL, 1ULL << 40, ~0ULL}) {
    SamplingParams params;
    params.seed = seed;
    SamplingState a = SamplingState::Create(params, 5).value();
    SamplingState b = SamplingState::Create(params, 9).value();
    b.Observe(std::vector<int32_t>{1, 2});
    for (int draw = 0; draw < 100; ++draw) {
      const double u = a.NextUniform();
      if (draw == 0) firsts.insert(u);
      EXPECT_EQ(u, b.NextUniform());
      EXPECT_GE(u, 0);
      EXPECT_LT(u, 1);
    }
  }
  EXPECT_EQ(firsts.size(), 5);
}

TEST(SamplingState, DrawsAreUniformAndIndependentOfTheirNeighbours) {
  // Chi-square over a grid of (this draw, the next), and over first draws of seeds.
  constexpr int kCells = 8;
  constexpr int kDraws = 64'000;
  std::vector<int> pairs(kCells * kCells);
  std::vector<int> firsts(kCells * kCells);
  SamplingState state = SamplingState::Create({}, 5).value();
  double last = state.NextUniform();
  for (int draw = 0; draw < kDraws; ++draw) {
    const double next = state.NextUniform();
    ++pairs[static_cast<int>(last * kCells) * kCells + static_cast<int>(next * kCells)];
    last = next;
    SamplingParams params;
    params.seed = draw;
    ++firsts[static_cast<int>(SamplingState::Create(params, 5).value().NextUniform() * kCells * kCells)];
  }
  for (const std::vector<int>* counts : {&pairs, &firsts}) {
    double chi_square = 0;
    constexpr double kExpected = static_cast<double>(kDraws) / (kCells * kCells);
    for (const int count : *counts) chi_square += (count - kExpected) * (count - kExpected) / kExpected;
    EXPECT_LT(chi_square, 103.4);  // 63 degrees of freedom, p = 0.001
    EXPECT_GT(chi_square, 33.0);   // too even is no better
  }
}

}  // namespace
}  // namespace gatehouse
