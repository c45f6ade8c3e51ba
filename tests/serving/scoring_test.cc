#include <gmock/gmock.h>

#include <cmath>

#include "server/serving/score_windows.h"
#include "tests/serving/serving_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ScoreWindows, ScoresEveryPositionButTheFirstExactlyOnce) {
  for (int tokens = 1; tokens <= 40; ++tokens) {
    for (uint32_t size = 2; size <= 12; ++size) {
      for (uint32_t stride = 1; stride <= size; ++stride) {
        const auto windows = ScoreWindows::Create(tokens, size, stride, /*blocks=*/false, 12);
        ASSERT_TRUE(windows.ok());
        int64_t next = 0;
        for (int64_t w = 0; w < windows->count(); ++w) {
          const ScoreWindows::Window window = windows->At(w);
          ASSERT_EQ(window.first, next) << tokens << " " << size << " " << stride;
          ASSERT_GT(window.end, window.first);
          ASSERT_EQ(window.scores_first, w > 0);
          ASSERT_LE(window.begin, window.first - (w > 0 ? 1 : 0));
          ASSERT_GE(window.fed_end, window.end - 1);
          ASSERT_LE(window.fed_end - window.begin, windows->most_fed());
          ASSERT_LE(windows->most_fed(), 12);
          next = window.end;
        }
        ASSERT_EQ(next, tokens);
      }
    }
  }
}

TEST(ScoreWindows, ReadsWhatItsDefinitionSays) {
  const auto windows = *ScoreWindows::Create(20, 10, 5, false, 64);
  ASSERT_EQ(windows.count(), 3);
  EXPECT_EQ(windows.At(1).begin, 5);
  EXPECT_EQ(windows.At(1).first, 10);
  EXPECT_EQ(windows.At(1).end, 15);
  // Where a window has to score its own first token it starts one earlier.
  const auto tiled = *ScoreWindows::Create(20, 10, 10, false, 64);
  ASSERT_EQ(tiled.count(), 2);
  EXPECT_EQ(tiled.At(1).begin, 9);
  EXPECT_EQ(tiled.At(1).fed_end, 20);
  // At the size of the context the last token has no room, and needs none.
  EXPECT_EQ((*ScoreWindows::Create(20, 10, 10, false, 10)).At(1).fed_end, 19);
}

TEST(ScoreWindows, RefusesSizesAndStridesOutOfBounds) {
  EXPECT_THAT(ScoreWindows::Create(20, 1, 0, false, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[2, 10]")));
  EXPECT_THAT(ScoreWindows::Create(20, 11, 0, false, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[2, 10]")));
  EXPECT_THAT(ScoreWindows::Create(20, 8, 9, false, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1, 8]")));
  EXPECT_THAT(ScoreWindows::Create(20, 8, 4, true, 10),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("blocks")));
  EXPECT_TRUE(ScoreWindows::Create(20, 8, 8, true, 10).ok());
  EXPECT_TRUE(ScoreWindows::Create(20, 4294967295u, 0, false, 10).status().code() ==
              absl::StatusCode::kInvalidArgument);
}

class Scoring : public ServingTest {
 protected:
  static ScoreRequest Text(std::vector<int32_t> ids, uint32_t size = 0, uint32_t stride = 0) {
    ScoreRequest request;
    request.model = "m";
    request.input.token_ids = std::move(ids);
    request.window_size = size;
    request.stride = stride;
    return request;
  }

  // The log-probability of position `at`, read by a window that begins at `begin`.
  float Expected(const std::vector<int32_t>& ids, int begin, int at) const {
    return engine_->Logprobs(std::span(ids).subspan(begin, at - begin))[ids[at]];
  }
};

TEST_F(Scoring, ScoresATextInOneWindow) {
  const std::vector<int32_t> ids = Ids(12);
  const auto sink = Score(Text(ids));
  ASSERT_EQ(sink->tokens.size(), 12u);
  EXPECT_FALSE(sink->tokens[0].logprob.has_value());
  EXPECT_EQ(sink->tokens[0].id, ids[0]);
  double total = 0;
  for (int i = 1; i < 12; ++i) {
    EXPECT_EQ(sink->tokens[i].position, i);
    EXPECT_EQ(sink->tokens[i].logprob, Expected(ids, 0, i));
    total += *sink->tokens[i].logprob;
  }
  EXPECT_EQ(sink->summary->tokens, 12u);
  EXPECT_EQ(sink->summary->scored_tokens, 11u);
  EXPECT_EQ(sink->summary->windows, 1u);
  EXPECT_DOUBLE_EQ(sink->summary->total_logprob, total);
  EXPECT_DOUBLE_EQ(*sink->summary->perplexity, std::exp(-total / 11));
}

TEST_F(Scoring, GivesOneTokenNoPerplexity) {
  const auto sink = Score(Text({5}));
  ASSERT_EQ(sink->tokens.size(), 1u);
  EXPECT_FALSE(sink->tokens[0].logprob.has_value());
  EXPECT_EQ(sink->summary->scored_tokens, 0u);
  EXPECT_EQ(sink->summary->total_logprob, 0);
  EXPECT_FALSE(sink->summary->perplexity.has_value());
  EXPECT_TRUE(Score(Text({5, 6}))->tokens[1].logprob.has_value());
}

TEST_F(Scoring, ScoresEachPositionOnceInItsWindowWhateverTheChunks) {
  Run({.prefill_chunk = 3}, {.context = 10});
  const std::vector<int32_t> ids = Ids(20);
  for (const auto& [size, stride] :
       std::vector<std::pair<uint32_t, uint32_t>>{{10, 10}, {10, 5}, {10, 9}, {8, 3}, {2, 1}}) {
    const auto sink = Score(Text(ids, size, stride));
    ASSERT_EQ(sink->tokens.size(), 20u);
    const auto windows = *ScoreWindows::Create(20, size, stride, false, 10);
    int64_t window = 0;
    for (int i = 1; i < 20; ++i) {
      while (windows.At(window).end <= i) ++window;
      EXPECT_EQ(sink->tokens[i].position, i);
      EXPECT_EQ(sink->tokens[i].logprob, Expected(ids, static_cast<int>(windows.At(window).begin), i))
          << size << " " << stride << " at " << i;
    }
    EXPECT_EQ(sink->summary->scored_tokens, 19u);
    EXPECT_EQ(sink->summary->windows, windows.count());
  }
}

TEST_F(Scoring, ScoresTheEndOfALongTextOnTheContextThatIsLeft) {
  Run({}, {.context = 3});
  const std::vector<int32_t> ids = Ids(5);
  const auto sink = Score(Text(ids, 3, 2));
  EXPECT_EQ(sink->tokens[3].logprob, Expected(ids, 2, 3));
  EXPECT_EQ(sink->tokens[4].logprob, Expected(ids, 2, 4));
}

TEST_F(Scoring, FeedsAndDoesNotScoreTheFirstTokenOfABlock) {
  ScoreRequest request = Text(Ids(11), 4);
  request.blocks = true;
  const auto sink = Score(request);
  ASSERT_EQ(sink->tokens.size(), 11u);
  for (int i = 0; i < 11; ++i) {
    EXPECT_EQ(sink->tokens[i].position, i);
    EXPECT_EQ(sink->tokens[i].logprob.has_value(), i % 4 != 0);
    if (i % 4 != 0) {
      EXPECT_EQ(sink->tokens[i].logprob, Expected(Ids(11), i - i % 4, i));
    }
  }
  EXPECT_EQ(sink->summary->windows, 3u);
  EXPECT_EQ(sink->summary->scored_tokens, 8u);
  EXPECT_EQ(sink->summary->routing.decisions, 11u * 3);
}

TEST_F(Scoring, ScoresTheSameAfterOtherCalls) {
  const auto cold = Score(Text(Ids(12)));
  Generate(Prompt(Ids(6), 5));
  const auto warm = Score(Text(Ids(12)));
  for (int i = 1; i < 12; ++i) EXPECT_EQ(warm->tokens[i].logprob, cold->tokens[i].logprob);
}

TEST_F(Scoring, SendsOnlyTheSummaryWhereAsked) {
  ScoreRequest request = Text(Ids(12));
  const auto whole = Score(request);
  request.summary_only = true;
  request.records.routing = true;
  const auto summary = Score(request);
  EXPECT_TRUE(summary->tokens.empty());
  EXPECT_EQ(summary->summary->total_logprob, whole->summary->total_logprob);
  EXPECT_FALSE(engine_->steps().back()[0].records.any());
}

TEST_F(Scoring, SendsRecordsAndAlternativesOfEachToken) {
  Run({.prefill_chunk = 4});
  ScoreRequest request = Text(Ids(9), 6, 6);
  request.records.routing = true;
  request.top_logprobs = 2;
  const auto sink = Score(request);
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(sink->tokens[i].insight.has_value()) << i;
    EXPECT_EQ(sink->tokens[i].insight->id, sink->tokens[i].id);
    EXPECT_EQ(sink->tokens[i].insight->paths.size(), 3u);
    EXPECT_EQ(sink->tokens[i].top.size(), i == 0 ? 0u : 2u);
  }
}

TEST_F(Scoring, ReportsExactlyTheRoutingThatTheObserverHears) {
  Run({.prefill_chunk = 4});
  ScoreRequest request = Text(Ids(20), 8, 3);
  request.gating.request.mode = GatingMode::kGated;
  request.gating.request.ladder_threshold = 0.25f;
  const RoutingReport report = Score(request)->summary->routing;
  const auto routed = observer_.routed("m", Phase::kScore);
  EXPECT_EQ(report.decisions, routed.tokens * 3);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(report.linear_tokens[layer], routed.linear[layer]);
    EXPECT_EQ(report.ladder_tokens[layer], routed.ladder[layer]);
  }
  EXPECT_GT(report.ladder_decisions, 0u);
  EXPECT_EQ(observer_.routed("m", Phase::kPrefill).tokens, 0u);
  EXPECT_EQ(observer_.calls().at(0).method, "score");
  EXPECT_EQ(observer_.calls().at(0).prompt_tokens, 20);
}

TEST_F(Scoring, RefusesAnEmptyText) {
  Run();
  EXPECT_THAT(scheduler_->StartScore(Text({}), {}, std::make_shared<ScoreRecord>()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("input")));
}

class Analysis : public ServingTest {
 protected:
  static AnalysisRequest Texts(const std::vector<std::vector<int32_t>>& texts) {
    AnalysisRequest request;
    request.model = "m";
    for (const auto& ids : texts) request.inputs.emplace_back().token_ids = ids;
    request.records.nonlinearity = true;
    return request;
  }

  std::shared_ptr<AnalysisRecord> Analyse(const AnalysisRequest& request) {
    if (scheduler_ == nullptr) Run();
    auto sink = std::make_shared<AnalysisRecord>();
    const auto call = scheduler_->StartAnalysis(request, {}, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call.ok()) {
      EXPECT_EQ(sink->Wait(), absl::OkStatus());
    }
    return sink;
  }
  absl::Status StatusOfStart(const AnalysisRequest& request) {
    if (scheduler_ == nullptr) Run();
    return scheduler_->StartAnalysis(request, {}, std::make_shared<AnalysisRecord>()).status();
  }
};

TEST_F(Analysis, RecordsEachTokenOfEachTextFromAnEmptySequence) {
  Run({.prefill_chunk = 4});
  const auto sink = Analyse(Texts({Ids(6), {9}, Ids(6)}));
  EXPECT_EQ(sink->calibration->info().name, "cal");
  ASSERT_EQ(sink->tokens.size(), 3u);
  ASSERT_EQ(sink->tokens[0].size(), 6u);
  ASSERT_EQ(sink->tokens[1].size(), 1u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(sink->tokens[0][i].position, i);
    EXPECT_EQ(sink->tokens[0][i].id, Ids(6)[i]);
    EXPECT_EQ(sink->tokens[0][i].nonlinearity.size(), 3u);
    EXPECT_EQ(sink->tokens[0][i].nonlinearity, sink->tokens[2][i].nonlinearity);
  }
  EXPECT_EQ(sink->summary->tokens, 13u);
  EXPECT_EQ(sink->summary->routing.decisions, 13u * 3);
  EXPECT_EQ(observer_.routed("m", Phase::kScore).tokens, 13u);
  EXPECT_EQ(observer_.calls().at(0).method, "nonlinearity");
}

TEST_F(Analysis, SaysWhereATokenWentLinear) {
  AnalysisRequest request = Texts({Ids(4)});
  request.records = {.routing = true, .nonlinearity = false, .consensus = true};
  request.gating.request.mode = GatingMode::kLinear;
  const auto sink = Analyse(request);
  EXPECT_GE(sink->tokens[0][0].level[0], 0);
  EXPECT_EQ(sink->tokens[0][1].level[0], -1);
  EXPECT_EQ(sink->tokens[0][1].paths[0], MlpPath::kLinear);
  EXPECT_EQ(observer_.calls().at(0).method, "consensus");
}

TEST_F(Analysis, RefusesTextsThatDoNotFit) {
  Run({}, {.context = 8});
  EXPECT_THAT(StatusOfStart(Texts({})), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("inputs")));
  EXPECT_THAT(StatusOfStart(Texts({{1}, {}})), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("inputs[1]")));
  EXPECT_THAT(StatusOfStart(Texts({Ids(9)})), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9 tokens")));
  EXPECT_THAT(StatusOfStart(Texts(std::vector<std::vector<int32_t>>(257, {1}))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("256")));
  EXPECT_EQ(Analyse(Texts({Ids(8)}))->tokens[0].size(), 8u);
}

}  // namespace
}  // namespace gatehouse::testing
