#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/serving/serving_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Generation : public ServingTest {
 protected:
  absl::Status StatusOfStart(const GenerateRequest& request) {
    return Start(request, std::make_shared<GenerationRecord>()).status();
  }

  // The continuation that asking the model afresh for each token gives.
  std::vector<int32_t> Greedy(std::vector<int32_t> tokens, int count) const {
    std::vector<int32_t> continuation;
    for (int i = 0; i < count; ++i) {
      const std::vector<float> logprobs = engine_->Logprobs(tokens);
      const auto best = std::max_element(logprobs.begin(), logprobs.end());
      continuation.push_back(static_cast<int32_t>(best - logprobs.begin()));
      tokens.push_back(continuation.back());
    }
    return continuation;
  }

  // Makes the model say `tokens` after a prompt of one token.
  void Script(const std::vector<int32_t>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) engine_->SetTokenAt(static_cast<int>(i) + 1, tokens[i]);
  }
};

std::vector<int32_t> Bytes(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST_F(Generation, GivesTheTokensAndLogProbabilitiesOfTheModelAskedAfresh) {
  const auto sink = Generate(Prompt({10, 20, 30}, 8));
  EXPECT_EQ(sink->ids(), Greedy({10, 20, 30}, 8));
  std::vector<int32_t> tokens = {10, 20, 30};
  for (const GeneratedToken& token : sink->tokens) {
    EXPECT_EQ(token.logprob, engine_->Logprobs(tokens)[token.id]);
    tokens.push_back(token.id);
  }
  EXPECT_EQ(sink->start->prompt_tokens, 3);
  EXPECT_EQ(sink->start->max_tokens, 8);
  EXPECT_EQ(sink->summary->finish_reason, FinishReason::kLength);
  EXPECT_EQ(sink->summary->generated_tokens, 8);
  EXPECT_EQ(observer_.inter_tokens(), 7);
}

TEST_F(Generation, FeedsThePromptInChunksAndNeverTheLastToken) {
  Run({.prefill_chunk = 4});
  std::vector<int32_t> prompt(10);
  std::iota(prompt.begin(), prompt.end(), 1);
  const auto sink = Generate(Prompt(prompt, 3));
  EXPECT_EQ(sink->ids(), Greedy(prompt, 3));
  std::vector<size_t> sizes;
  for (const auto& step : engine_->steps()) sizes.push_back(step[0].tokens.size());
  EXPECT_THAT(sizes, ElementsAre(4, 4, 2, 1, 1));
  EXPECT_EQ(sink->summary->routing.decisions, 12u * 3);
}

TEST_F(Generation, FillsTheContextToTheLastPositionAndNoFurther) {
  Run({}, {.context = 32});
  const auto prompt = [](int length) { return std::vector<int32_t>(length, 7); };
  EXPECT_EQ(Generate(Prompt(prompt(31), 2))->ids().size(), 2u);
  EXPECT_EQ(Generate(Prompt(prompt(32), 1))->ids().size(), 1u);
  const auto capped = Generate(Prompt(prompt(32), 2));
  EXPECT_EQ(capped->ids().size(), 1u);
  EXPECT_EQ(capped->start->max_tokens, 1);
  EXPECT_EQ(capped->summary->finish_reason, FinishReason::kLength);
  EXPECT_THAT(StatusOfStart(Prompt(prompt(33), 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("33 tokens")));
}

TEST_F(Generation, CapsMaxTokensWithoutOverflow) {
  Run({}, {.context = 32});
  EXPECT_EQ(Generate(Prompt({1, 2}, std::numeric_limits<uint32_t>::max()))->ids().size(), 31u);
  EXPECT_EQ(Generate(Prompt({1, 2}, std::numeric_limits<int32_t>::max()))->ids().size(), 31u);
  GenerateRequest unset = Prompt({1, 2}, 1);
  unset.max_tokens.reset();
  EXPECT_EQ(Generate(unset)->ids().size(), 31u);
  EXPECT_EQ(Generate(Prompt({1, 2}, 1))->ids().size(), 1u);
  EXPECT_THAT(StatusOfStart(Prompt({1, 2}, 0)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_tokens")));
}

TEST_F(Generation, CapsAnAbsentMaxTokensByTheMemoryForKeysAndValues) {
  Run({}, {.context = 64, .kv_pages = 2, .page_tokens = 16});
  GenerateRequest request = Prompt({1, 2}, 1);
  request.max_tokens.reset();
  EXPECT_EQ(Generate(request)->ids().size(), 31u);
}

TEST_F(Generation, RefusesAnEmptyPrompt) {
  GenerateRequest request = Prompt({}, 3);
  EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt")));
  request.prompt.text = "";
  EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt")));
  request.prompt.text = " \n";
  EXPECT_EQ(Generate(request)->ids().size(), 3u);
}

TEST_F(Generation, RefusesTokenIdsOutsideTheVocabulary) {
  for (const int32_t id : {260, -1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    EXPECT_THAT(StatusOfStart(Prompt({1, id}, 3)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 260)")));
    GenerateRequest stop = Prompt({1}, 3);
    stop.stop.token_ids = {id};
    EXPECT_THAT(StatusOfStart(stop), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stop.token_ids")));
    GenerateRequest bias = Prompt({1}, 3);
    bias.sampling.logit_bias[id] = 1;
    EXPECT_THAT(StatusOfStart(bias), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("logit_bias")));
  }
  EXPECT_EQ(Generate(Prompt({259}, 3))->ids().size(), 3u);
}

TEST_F(Generation, RefusesBadBiases) {
  Run({}, {.vocab_size = 2000});
  for (const float bias : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    GenerateRequest request = Prompt({1}, 3);
    request.sampling.logit_bias[5] = bias;
    EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("logit_bias")));
  }
  GenerateRequest many = Prompt({1}, 3);
  for (int32_t id = 0; id < 1025; ++id) many.sampling.logit_bias[id] = 0;
  EXPECT_THAT(StatusOfStart(many), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1024")));
}

TEST_F(Generation, RefusesBadStopStrings) {
  for (const std::vector<std::string>& strings : std::vector<std::vector<std::string>>{
           {""}, {"", "x"}, std::vector<std::string>(17, "x"), {std::string(257, 'x')}, {"\xFF"}, {"a\xC3"}}) {
    GenerateRequest request = Prompt({1}, 3);
    request.stop.strings = strings;
    EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stop.strings")));
  }
}

TEST_F(Generation, RefusesTopLogprobsOutOfBounds) {
  for (const int top : {-1, 21}) {
    GenerateRequest request = Prompt({1}, 3);
    request.top_logprobs = top;
    EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 20]")));
  }
}

TEST_F(Generation, RefusesTextThatIsNotUtf8WithoutQuotingIt) {
  GenerateRequest request = Prompt({}, 3);
  request.prompt.text = "secret\xFF\xFE";
  const absl::Status status = StatusOfStart(request);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("secret")));
}

TEST_F(Generation, NamesTheModelsThereAreWhenAskedForAnother) {
  GenerateRequest request = Prompt({1}, 3);
  request.model = "other";
  EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kNotFound, HasSubstr("this server has: m")));
  EXPECT_EQ(observer_.calls().at(0).model, "");
  EXPECT_EQ(observer_.calls().at(0).code, absl::StatusCode::kNotFound);
}

TEST_F(Generation, TakesSpecialTokensInTextUnlessToldToKeepItPlain) {
  GenerateRequest request = Prompt({}, 1);
  request.prompt.text = "a<|endoftext|>";
  EXPECT_EQ(Generate(request)->start->prompt_tokens, 2);
  request.prompt.plain_text = true;
  EXPECT_EQ(Generate(request)->start->prompt_tokens, 14);
}

TEST_F(Generation, EndsAtTheModelsEndOfTextWithoutShowingIt) {
  Run();
  Script({'a', 256, 'b'});
  GenerateRequest request = Prompt({1}, 5);
  request.stop.ignore_eos = false;
  const auto sink = Generate(request);
  EXPECT_THAT(sink->ids(), ElementsAre('a', 256));
  EXPECT_EQ(sink->text(), "a");
  EXPECT_EQ(sink->summary->finish_reason, FinishReason::kEos);
  request.stop.ignore_eos = true;
  const auto ignoring = Generate(request);
  EXPECT_EQ(ignoring->ids().size(), 5u);
  EXPECT_THAT(ignoring->text(), HasSubstr("a<|endoftext|>b"));
}

TEST_F(Generation, EndsAfterAStopTokenWithoutItsText) {
  Run();
  Script({'a', 'b', 'c'});
  GenerateRequest request = Prompt({1}, 5);
  request.stop.token_ids = {'b'};
  const auto sink = Generate(request);
  EXPECT_THAT(sink->ids(), ElementsAre('a', 'b'));
  EXPECT_EQ(sink->text(), "a");
  EXPECT_EQ(sink->summary->finish_reason, FinishReason::kStopToken);
}

TEST_F(Generation, EndsAtAStopStringAcrossTokensAndCutsIt) {
  Run();
  Script(Bytes("some ENx END. more"));
  GenerateRequest request = Prompt({1}, 18);
  request.stop.strings = {"END"};
  const auto sink = Generate(request);
  EXPECT_EQ(sink->text(), "some ENx ");
  EXPECT_EQ(sink->summary->finish_reason, FinishReason::kStopString);
  EXPECT_EQ(sink->summary->matched_stop, "END");
  EXPECT_EQ(sink->ids().size(), 12u);
  EXPECT_EQ(sink->tokens[5].text, "");
  EXPECT_EQ(sink->tokens[7].text, "ENx");
}

TEST_F(Generation, PrefersAStopStringToTheLengthLimitAtTheSameToken) {
  Run();
  Script(Bytes("ab"));
  GenerateRequest request = Prompt({1}, 2);
  request.stop.strings = {"b"};
  EXPECT_EQ(Generate(request)->summary->finish_reason, FinishReason::kStopString);
}

TEST_F(Generation, SendsHeldTextInTheSummary) {
  Run();
  Script(Bytes("abEN"));
  GenerateRequest request = Prompt({1}, 4);
  request.stop.strings = {"END"};
  const auto sink = Generate(request);
  EXPECT_EQ(sink->summary->text, "EN");
  EXPECT_EQ(sink->text(), "abEN");
}

TEST_F(Generation, ShowsACharacterThatTheLimitCutAsOneReplacement) {
  Run();
  Script({'a', 0xF0, 0x9F, 0x98});
  const auto sink = Generate(Prompt({1}, 4));
  EXPECT_EQ(sink->tokens[3].raw, "\x98");
  EXPECT_EQ(sink->tokens[3].text, "");
  EXPECT_EQ(sink->summary->text, "\uFFFD");
}

TEST_F(Generation, GoesOnAfterATokenThatTheTokenizerDoesNotKnow) {
  Run();
  Script({'A', 258, 'B'});
  const auto sink = Generate(Prompt({1}, 3));
  EXPECT_EQ(sink->text(), "AB");
  EXPECT_THAT(sink->ids(), ElementsAre('A', 258, 'B'));
}

TEST_F(Generation, GivesTheSameTokensForTheSameSeedWhateverTheNeighbours) {
  GenerateRequest request = Prompt({1, 2}, 20);
  request.sampling.temperature = 1;
  request.sampling.seed = 0;
  request.has_seed = true;
  const std::vector<int32_t> alone = Generate(request)->ids();
  EXPECT_EQ(Generate(request)->ids(), alone);
  std::vector<std::shared_ptr<GenerationRecord>> sinks;
  for (int i = 0; i < 7; ++i) {
    GenerateRequest neighbour = Prompt({1, 2}, 20);
    neighbour.sampling.temperature = 1;
    neighbour.has_seed = i % 2 == 0;
    neighbour.sampling.seed = i + 1;
    sinks.push_back(std::make_shared<GenerationRecord>());
    ASSERT_TRUE(Start(neighbour, sinks.back()).ok());
  }
  EXPECT_EQ(Generate(request)->ids(), alone);
  for (const auto& sink : sinks) EXPECT_EQ(sink->Wait(), absl::OkStatus());
}

TEST_F(Generation, DrawsAFreshSeedAndReportsIt) {
  GenerateRequest request = Prompt({1, 2}, 30);
  request.sampling.temperature = 1;
  const auto first = Generate(request);
  EXPECT_NE(Generate(request)->summary->seed, first->summary->seed);
  request.has_seed = true;
  request.sampling.seed = first->summary->seed;
  EXPECT_EQ(Generate(request)->ids(), first->ids());
}

TEST_F(Generation, SendsAlternativesWithEachToken) {
  GenerateRequest request = Prompt({1, 2}, 3);
  request.top_logprobs = 4;
  const auto sink = Generate(request);
  for (const GeneratedToken& token : sink->tokens) {
    ASSERT_EQ(token.top.size(), 4u);
    EXPECT_EQ(token.top[0].id, token.id);
    EXPECT_GE(token.top[0].logprob, token.top[1].logprob);
  }
}

TEST_F(Generation, SendsATokensRecordsFromItsOwnPassAndNoneForTheLast) {
  GenerateRequest request = Prompt({1, 2, 3}, 5);
  request.records.routing = request.records.consensus = request.records.nonlinearity = true;
  request.record_prompt = true;
  const auto sink = Generate(request);
  ASSERT_EQ(sink->prompt.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sink->prompt[i].position, i);
    EXPECT_EQ(sink->prompt[i].id, i + 1);
    EXPECT_EQ(sink->prompt[i].nonlinearity.size(), 3u);
  }
  ASSERT_EQ(sink->tokens.size(), 5u);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(sink->tokens[i].insight.has_value());
    EXPECT_EQ(sink->tokens[i].insight->id, sink->tokens[i].id);
    EXPECT_EQ(sink->tokens[i].insight->position, 3 + i);
    EXPECT_EQ(sink->tokens[i].insight->paths.size(), 3u);
    EXPECT_EQ(sink->tokens[i].insight->level.size(), 3u);
  }
  EXPECT_FALSE(sink->tokens[4].insight.has_value());
  // The same positions as a prompt give the same records.
  std::vector<int32_t> all = {1, 2, 3};
  for (const int32_t id : sink->ids()) all.push_back(id);
  GenerateRequest whole = Prompt(all, 1);
  whole.records = request.records;
  whole.record_prompt = true;
  const auto again = Generate(whole);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(again->prompt[3 + i].nonlinearity, sink->tokens[i].insight->nonlinearity);
    EXPECT_EQ(again->prompt[3 + i].fired, sink->tokens[i].insight->fired);
  }
}

TEST_F(Generation, ReportsExactlyTheRoutingThatTheObserverHears) {
  Run({.prefill_chunk = 4});
  GenerateRequest request = Prompt({1, 2, 3, 4, 5, 6}, 9);
  request.gating.request.mode = GatingMode::kGated;
  request.gating.request.operating_point = "1%";
  const RoutingReport report = Generate(request)->summary->routing;
  const auto prefill = observer_.routed("m", Phase::kPrefill);
  const auto decode = observer_.routed("m", Phase::kDecode);
  EXPECT_EQ(prefill.tokens, 6u);
  EXPECT_EQ(decode.tokens, 8u);
  EXPECT_EQ(report.decisions, 14u * 3);
  EXPECT_EQ(report.calibration, "cal");
  uint64_t linear = 0, ladder = 0;
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(report.linear_tokens[layer], prefill.linear[layer] + decode.linear[layer]);
    EXPECT_EQ(report.ladder_tokens[layer], prefill.ladder[layer] + decode.ladder[layer]);
    EXPECT_EQ(report.full_tokens[layer], 14 - report.linear_tokens[layer] - report.ladder_tokens[layer]);
    linear += report.linear_tokens[layer];
    ladder += report.ladder_tokens[layer];
  }
  EXPECT_EQ(report.linear_decisions, linear);
  EXPECT_EQ(report.ladder_decisions, ladder);
  EXPECT_GT(linear, 0u);
  EXPECT_GT(ladder, 0u);
  EXPECT_LT(linear + ladder, 14u * 3);
  EXPECT_EQ(report.ladder_tokens[2], 0u);  // has none
  // Width 8, 32 neurons, ladders of 8; the gate was asked for 13 tokens in each layer, all but the sink.
  const double done = 512.0 * static_cast<double>(14 * 3 - linear - ladder) + 64.0 * static_cast<double>(linear) +
                      (64.0 + 2 * 8 * 8) * static_cast<double>(ladder) + 8.0 * 13 * 3;
  EXPECT_NEAR(report.mlp_work_saved, 1 - done / (512.0 * 14 * 3), 1e-12);
}

TEST_F(Generation, RunsLaddersButForTheSinksAndLayersWithoutOne) {
  Run();
  GenerateRequest request = Prompt({1, 2, 3}, 3);
  request.gating.request.mode = GatingMode::kLadder;
  const RoutingReport report = Generate(request)->summary->routing;
  EXPECT_THAT(report.ladder_tokens, ElementsAre(4, 4, 0));
  EXPECT_THAT(report.full_tokens, ElementsAre(1, 1, 5));
  EXPECT_EQ(report.linear_decisions, 0u);
  EXPECT_NEAR(report.mlp_work_saved, 1 - (7 * 512.0 + 8 * 192.0) / (15 * 512.0), 1e-12);
}

TEST_F(Generation, RunsLinearButForTheSinks) {
  GenerateRequest request = Prompt({1, 2, 3}, 2);
  request.gating.request.mode = GatingMode::kLinear;
  const RoutingReport report = Generate(request)->summary->routing;
  EXPECT_EQ(report.linear_decisions, 3u * 3);  // of four positions one is a sink
  EXPECT_EQ(report.decisions, 4u * 3);
  EXPECT_DOUBLE_EQ(report.linear_fraction(), 0.75);
}

TEST_F(Generation, NeedsNoCalibrationInFullAndNamesOneOtherwise) {
  FakeEngine* engine = nullptr;
  ASSERT_TRUE(catalog_.Add(MakeFakeModel("plain", {}, &engine)).ok());
  Run();
  GenerateRequest request = Prompt({1, 2}, 2);
  request.model = "plain";
  EXPECT_EQ(Generate(request)->summary->routing.calibration, "");
  request.gating.request.mode = GatingMode::kGated;
  EXPECT_THAT(StatusOfStart(request),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gatehouse calibrate --model plain")));
  request.gating.request.mode = GatingMode::kFull;
  request.records.nonlinearity = true;
  EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not calibrated")));
  request.model = "m";
  request.gating.calibration = "absent";
  EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kNotFound, HasSubstr("it has: cal")));
}

TEST_F(Generation, RefusesABadPolicy) {
  for (const float threshold : {-0.1f, 1.1f, std::numeric_limits<float>::quiet_NaN()}) {
    GenerateRequest request = Prompt({1, 2}, 2);
    request.gating.request.mode = GatingMode::kGated;
    request.gating.request.threshold = threshold;
    EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("threshold")));
  }
  GenerateRequest request = Prompt({1, 2}, 2);
  request.gating.request.mode = GatingMode::kLinear;
  request.gating.request.layers = {3};
  EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layer 3")));
}

TEST_F(Generation, EndsAsInternalWhereTheModelProducesNanAndServesTheNext) {
  Run();
  engine_->ProduceNanAt(77);
  auto sink = std::make_shared<GenerationRecord>();
  ASSERT_TRUE(Start(Prompt({1, 77}, 3), sink).ok());
  EXPECT_THAT(sink->Wait(), StatusIs(absl::StatusCode::kInternal, HasSubstr("NaN")));
  EXPECT_EQ(Generate(Prompt({1, 2}, 3))->ids().size(), 3u);
  EXPECT_EQ(engine_->open_sequences(), 0);
}

TEST_F(Generation, TellsTheObserverHowTheCallEnded) {
  Generate(Prompt({1, 2}, 3));
  const CallObservation call = observer_.calls().at(0);
  EXPECT_EQ(call.model, "m");
  EXPECT_EQ(call.method, "generate");
  EXPECT_EQ(call.code, absl::StatusCode::kOk);
  EXPECT_EQ(call.finish_reason, FinishReason::kLength);
  EXPECT_EQ(call.prompt_tokens, 2);
  EXPECT_EQ(call.generated_tokens, 3);
  EXPECT_GE(call.total_seconds, call.queue_seconds + call.prefill_seconds + call.decode_seconds - 1e-3);
  ASSERT_TRUE(call.first_token_seconds.has_value());
  EXPECT_GT(*call.first_token_seconds, 0);
}

}  // namespace
}  // namespace gatehouse::testing
