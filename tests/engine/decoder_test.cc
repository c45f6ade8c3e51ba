#include "server/engine/model/decoder.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "server/engine/training/plain_forward.h"
#include "tests/engine/counting_kernels.h"
#include "tests/engine/test_models.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::CountingKernels;
using ::gatehouse::testing::IdTensor;
using ::gatehouse::testing::InfoOf;
using ::gatehouse::testing::KernelCalls;
using ::gatehouse::testing::LogprobsOf;
using ::gatehouse::testing::MakeTestModel;
using ::gatehouse::testing::MaxDifference;
using ::gatehouse::testing::RandomTokens;
using ::gatehouse::testing::StatusIs;
using ::gatehouse::testing::TestEngine;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string NameOf(Architecture architecture) {
  return architecture == Architecture::kGpt2 ? "gpt2" : architecture == Architecture::kGptNeoX ? "neox" : "llama";
}

SamplingState Greedy(const ModelWeights& model) {
  SamplingParams params;
  params.temperature = 0;
  return SamplingState::Create(params, model.config.vocab_size).value();
}

// Every architecture under every choice of kernels.
class DecoderOf : public ::testing::TestWithParam<std::tuple<Architecture, std::string>> {
 protected:
  static Architecture architecture() { return std::get<0>(GetParam()); }
  static TestEngine MakeEngine() {
    return TestEngine(MakeTestModel({.architecture = architecture()}), std::get<1>(GetParam()));
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, DecoderOf,
    ::testing::Combine(::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama),
                       ::testing::Values("portable", "auto")),
    [](const auto& info) { return NameOf(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

TEST_P(DecoderOf, EqualsTheModelFromScratchHoweverTheTokensAreCut) {
  TestEngine engine = MakeEngine();
  const std::vector<int32_t> tokens = RandomTokens(engine.model(), 90, 3);
  const std::vector<float> expected = LogprobsOf(PlainForward(engine.model(), IdTensor(tokens))[0], tokens);
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  for (const std::vector<int>& chunks :
       std::vector<std::vector<int>>{{1}, {90}, {1, 89}, {16}, {17}, {33, 1, 1, 32}, {5, 40, 3, 16, 31}}) {
    const TestEngine::Run run = engine.Score(tokens, full, chunks);
    ASSERT_TRUE(run.status.ok()) << run.status;
    EXPECT_LE(MaxDifference(run.logprobs, expected), 1e-4) << "first chunk " << chunks.front();
  }
}

TEST_P(DecoderOf, SamplesTheTokenAfterTheLastPositionWithItsAlternatives) {
  TestEngine engine = MakeEngine();
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  for (const int length : {1, 7, 40}) {
    const std::vector<int32_t> tokens = RandomTokens(engine.model(), length, 3);
    const at::Tensor logits = PlainForward(engine.model(), IdTensor(tokens))[0][length - 1];
    const auto [logprobs, ids] = at::topk(at::log_softmax(logits.to(at::kDouble), -1), 3);
    SamplingState sampling = Greedy(engine.model());
    Row row;
    row.sequence = engine.Open();
    row.tokens = tokens;
    row.policy = &full;
    row.sampling = &sampling;
    row.top_alternatives = 3;
    const RowResult result = engine.StepOne(row);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.sampled->token.id, ids[0].item<int64_t>());
    ASSERT_EQ(result.sampled->top.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(result.sampled->top[i].id, ids[i].item<int64_t>());
      EXPECT_NEAR(result.sampled->top[i].logprob, logprobs[i].item<double>(), 1e-4);
    }
    EXPECT_EQ(result.sampled->token.logprob, result.sampled->top[0].logprob);
    EXPECT_TRUE(result.target_logprobs.empty());
    EXPECT_EQ(result.records.tokens, 0);
    EXPECT_EQ(engine.cache().Length(row.sequence), length);
  }
}

TEST_P(DecoderOf, ContinuesAfterARollbackAsIfItHadNeverGoneThere) {
  TestEngine engine = MakeEngine();
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const std::vector<int32_t> tokens = RandomTokens(engine.model(), 70, 3);
  const std::vector<int32_t> detour = RandomTokens(engine.model(), 45, 4);
  const std::vector<int32_t> head(tokens.begin(), tokens.begin() + 37);
  const std::vector<int32_t> tail(tokens.begin() + 37, tokens.end());

  const SequenceId straight = engine.Open();
  ASSERT_TRUE(engine.Score(straight, head, full, {37}).status.ok());
  const TestEngine::Run expected = engine.Score(straight, tail, full, {20, 1});

  const SequenceId sequence = engine.Open();
  ASSERT_TRUE(engine.Score(sequence, head, full, {37}).status.ok());
  ASSERT_TRUE(engine.Score(sequence, detour, full, {40, 1}).status.ok());
  ASSERT_TRUE(engine.cache().Rollback(sequence, 37).ok());
  const TestEngine::Run run = engine.Score(sequence, tail, full, {20, 1});
  EXPECT_EQ(run.logprobs, expected.logprobs);
}

TEST_P(DecoderOf, DoesNotReadAnEarlierOwnersKeysFromAReusedPage) {
  TestEngine engine = MakeEngine();
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const std::vector<int32_t> tokens = RandomTokens(engine.model(), 50, 3);
  const TestEngine::Run cold = engine.Score(tokens, full, {50});
  ASSERT_TRUE(engine.Score(RandomTokens(engine.model(), 96, 5), full, {96}).status.ok());
  EXPECT_EQ(engine.Score(tokens, full, {50}).logprobs, cold.logprobs);
}

TEST_P(DecoderOf, StopsACancelledPrefillBetweenLayersAndLeavesTheSequenceAsItWas) {
  KernelCalls calls;
  ModelWeights model = MakeTestModel({.architecture = architecture(), .layers = 6});
  TestEngine engine(model, std::make_unique<CountingKernels>(
                               MakeKernels(std::get<1>(GetParam()), at::kCPU, at::kFloat).value(), calls));
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const std::vector<int32_t> tokens = RandomTokens(engine.model(), 60, 3);
  const TestEngine::Run expected = engine.Score(tokens, full, {20, 40});

  const SequenceId sequence = engine.Open();
  const std::vector<int32_t> head(tokens.begin(), tokens.begin() + 20);
  ASSERT_TRUE(engine.Score(sequence, head, full, {20}).status.ok());
  std::atomic<bool> cancelled = false;
  calls.attentions = 0;
  calls.on_attention = [&] { cancelled = calls.attentions == 2; };
  Row row;
  row.sequence = sequence;
  row.tokens = std::span(tokens).subspan(20);
  row.policy = &full;
  row.cancelled = &cancelled;
  EXPECT_THAT(engine.StepOne(row).status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(calls.attentions, 2);
  EXPECT_EQ(engine.cache().Length(sequence), 20);

  calls.on_attention = nullptr;
  const std::vector<int32_t> tail(tokens.begin() + 20, tokens.end());
  const TestEngine::Run run = engine.Score(sequence, tail, full, {40});
  EXPECT_EQ(run.logprobs, std::vector<float>(expected.logprobs.begin() + 20, expected.logprobs.end()));
}

TEST(Decoder, FinishesTheOthersWhenARowOfTheSkinnyGroupIsCancelled) {
  KernelCalls calls;
  TestEngine engine(MakeTestModel({}),
                    std::make_unique<CountingKernels>(MakePortableKernels(at::kCPU, at::kFloat), calls));
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const std::vector<int32_t> tokens = RandomTokens(engine.model(), 8, 3);
  std::atomic<bool> cancelled = false;
  calls.on_attention = [&] { cancelled = true; };
  SamplingState first = SamplingState::Create({}, engine.model().config.vocab_size).value();
  std::vector<Row> rows(2);
  for (Row& row : rows) {
    row.sequence = engine.Open();
    row.tokens = tokens;
    row.policy = &full;
  }
  rows[0].cancelled = &cancelled;
  rows[0].sampling = &first;
  const std::vector<RowResult> results = engine.decoder().Step(rows);
  EXPECT_THAT(results[0].status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_FALSE(results[0].sampled.has_value());
  EXPECT_TRUE(first.seen().empty());
  EXPECT_EQ(engine.cache().Length(rows[0].sequence), 0);
  EXPECT_TRUE(results[1].status.ok());
  EXPECT_EQ(engine.cache().Length(rows[1].sequence), 8);
}

TEST(Decoder, StopsAtTheContextAndNeverReadsPastThePositionTable) {  // N02
  TestEngine engine(MakeTestModel({.context = 32}));
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const std::vector<int32_t> tokens = RandomTokens(engine.model(), 34, 3);
  for (const int prompt : {31, 32}) {
    const SequenceId sequence = engine.Open();
    SamplingState sampling = Greedy(engine.model());
    Row row;
    row.sequence = sequence;
    row.tokens = std::span(tokens).first(prompt);
    row.policy = &full;
    row.sampling = &sampling;
    RowResult result = engine.StepOne(row);
    while (engine.cache().Length(sequence) < 32) {
      ASSERT_TRUE(result.status.ok()) << result.status;
      const int32_t next = result.sampled->token.id;
      row.tokens = {&next, 1};
      result = engine.StepOne(row);
    }
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_TRUE(result.sampled.has_value());  // the 33rd token, which is never fed
    row.tokens = std::span(tokens).first(1);
    EXPECT_THAT(engine.StepOne(row).status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("33 positions")));
    EXPECT_EQ(engine.cache().Length(sequence), 32);
  }
  for (const int prompt : {33, 34}) {
    const TestEngine::Run run = engine.Score(RandomTokens(engine.model(), prompt, 3), full, {prompt});
    EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("context of 32")));
  }
}

TEST(Decoder, KeepsASequenceWithinTheRoomItWasOpenedWith) {
  TestEngine engine(MakeTestModel({}));
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const SequenceId sequence = engine.cache().Open(10).value();
  EXPECT_TRUE(engine.Score(sequence, RandomTokens(engine.model(), 10, 3), full, {10}).status.ok());
  EXPECT_THAT(engine.Score(sequence, {1}, full, {1}).status,
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("room for 10")));
}

TEST(Decoder, RefusesIdsOutsideTheVocabularyAndServesTheOtherRows) {  // N08
  TestEngine engine(MakeTestModel({}));
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  const int32_t vocab = engine.model().config.vocab_size;
  for (const int32_t bad : {vocab, -1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    const std::vector<int32_t> bad_ids = {5, bad};
    const std::vector<int32_t> good_ids = {5, 6};
    const std::vector<int32_t> bad_targets = {bad == -1 ? -2 : bad, 6};
    std::vector<Row> rows(3);
    for (Row& row : rows) {
      row.sequence = engine.Open();
      row.tokens = good_ids;
      row.policy = &full;
    }
    rows[0].tokens = bad_ids;
    rows[1].targets = bad_targets;
    const std::vector<RowResult> results = engine.decoder().Step(rows);
    EXPECT_THAT(results[0].status,
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("tokens[1]"), HasSubstr("[0, 131)"))));
    EXPECT_THAT(results[1].status,
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("targets[0]"), HasSubstr("[-1, 131)"))));
    EXPECT_TRUE(results[2].status.ok());
    EXPECT_EQ(engine.cache().Length(rows[0].sequence), 0);
    for (const Row& row : rows) engine.cache().Close(row.sequence);
  }
}

TEST(Decoder, NamesWhatIsWrongWithARow) {
  TestEngine engine(MakeTestModel({}));
  const ModelInfo info = InfoOf(engine.model());
  const RoutingPolicy full = RoutingPolicy::Full(info);
  ModelInfo deeper = info;
  ++deeper.layers;
  const RoutingPolicy of_another_depth = RoutingPolicy::Full(deeper);
  ModelWeights other = engine.model();
  other.fingerprint = "sha256:other";
  const RoutingPolicy of_another_model = RoutingPolicy::Full(info, gatehouse::testing::MakeTestCalibration(other, {}));
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<int32_t> targets = {1, 2};
  Row good;
  good.sequence = engine.Open();
  good.tokens = tokens;
  good.policy = &full;
  const auto status_of = [&](auto change) {
    Row row = good;
    change(row);
    const absl::Status status = engine.StepOne(row).status;
    EXPECT_EQ(engine.cache().Length(good.sequence), 0);
    return status;
  };
  using Code = absl::StatusCode;
  EXPECT_THAT(status_of([](Row& row) { row.tokens = {}; }), StatusIs(Code::kInvalidArgument, HasSubstr("no tokens")));
  EXPECT_THAT(status_of([](Row& row) { row.policy = nullptr; }), StatusIs(Code::kInvalidArgument, HasSubstr("policy")));
  EXPECT_THAT(status_of([&](Row& row) { row.policy = &of_another_depth; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("4 layers")));
  EXPECT_THAT(status_of([&](Row& row) { row.policy = &of_another_model; }),
              StatusIs(Code::kFailedPrecondition, HasSubstr("another model")));
  EXPECT_THAT(status_of([&](Row& row) { row.targets = targets; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("targets has 2")));
  EXPECT_THAT(status_of([](Row& row) { row.top_alternatives = 21; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("top_alternatives is 21")));
  EXPECT_THAT(status_of([](Row& row) { row.records.nonlinearity = true; }),
              StatusIs(Code::kFailedPrecondition, HasSubstr("calibration")));
  EXPECT_THAT(status_of([](Row& row) { row.sequence = SequenceId{99}; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("not open")));

  const std::vector<Row> twice = {good, good};
  const std::vector<RowResult> results = engine.decoder().Step(twice);
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_THAT(results[1].status, StatusIs(Code::kInvalidArgument, HasSubstr("same sequence")));
}

TEST(Decoder, ContainsANaNInItsRow) {
  ModelWeights model = MakeTestModel({});
  constexpr int32_t kPoison = 7;
  model.token_embedding[kPoison].fill_(std::numeric_limits<float>::quiet_NaN());
  TestEngine engine(model);
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(engine.model()));
  std::vector<int32_t> good(40), bad(40);
  for (int i = 0; i < 40; ++i) good[i] = 10 + i;
  bad = good;
  bad[3] = kPoison;
  for (const size_t count : {size_t{12}, size_t{40}}) {
    std::vector<std::vector<int32_t>> targets(2, std::vector<int32_t>(count, 20));
    std::vector<Row> rows(2);
    for (size_t i = 0; i < 2; ++i) {
      rows[i].sequence = engine.Open();
      rows[i].tokens = std::span(i == 0 ? bad : good).first(count);
      rows[i].targets = targets[i];
      rows[i].policy = &full;
    }
    const std::vector<RowResult> results = engine.decoder().Step(rows);
    EXPECT_THAT(results[0].status, StatusIs(absl::StatusCode::kInternal, HasSubstr("not finite")));
    EXPECT_TRUE(results[0].target_logprobs.empty());
    ASSERT_TRUE(results[1].status.ok());
    EXPECT_EQ(engine.cache().Length(rows[0].sequence), 0);

    // The poisoned keys and values lie behind the end of the sequence and are not read.
    rows[0].tokens = std::span(good).first(count);
    const RowResult again = engine.StepOne(rows[0]);
    ASSERT_TRUE(again.status.ok()) << again.status;
    EXPECT_EQ(again.target_logprobs, results[1].target_logprobs);
  }
}

}  // namespace
}  // namespace gatehouse
