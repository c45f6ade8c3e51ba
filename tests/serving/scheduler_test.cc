#include <gmock/gmock.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "server/base/error_reason.h"
#include "tests/serving/serving_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SchedulerTest : public ServingTest {
 protected:
  struct Started {
    std::shared_ptr<GenerationRecord> sink;
    std::shared_ptr<Call> call;
  };

  Started MustStart(const GenerateRequest& request, absl::Time deadline = absl::InfiniteFuture()) {
    Started started{.sink = std::make_shared<GenerationRecord>(), .call = nullptr};
    auto call = Start(request, started.sink, deadline);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call.ok()) started.call = *std::move(call);
    return started;
  }

  // Runs with steps that wait, and one call of `tokens` tokens in a step.
  Started RunBlocked(const SchedulerOptions& options = {}, const FakeEngineOptions& engine_options = {},
                     uint32_t tokens = 5) {
    Run(options, engine_options);
    engine_->BlockSteps();
    Started started = MustStart(Prompt({1}, tokens));
    engine_->WaitUntilBlocked();
    return started;
  }

  ModelLoad LoadOf(const std::string& model) {
    for (const ModelLoad& load : scheduler_->Load()) {
      if (load.model == model) return load;
    }
    ADD_FAILURE() << "no load of " << model;
    return {};
  }

  // The numbers of rows of the steps so far.
  std::vector<size_t> RowsOfSteps() const {
    std::vector<size_t> rows;
    for (const auto& step : engine_->steps()) rows.push_back(step.size());
    return rows;
  }
};

TEST_F(SchedulerTest, DecodesEightStreamsInSharedStepsWithTheTokensOfTheirSoloRuns) {
  Run();
  std::vector<std::vector<int32_t>> solo;
  for (int i = 0; i < 8; ++i) solo.push_back(Generate(Prompt({i + 1}, 6))->ids());
  const size_t before = engine_->steps().size();
  engine_->BlockSteps();
  const Started plug = MustStart(Prompt({100}, 1));
  engine_->WaitUntilBlocked();
  std::vector<Started> started;
  for (int i = 0; i < 8; ++i) started.push_back(MustStart(Prompt({i + 1}, 6)));
  engine_->ReleaseSteps();
  EXPECT_EQ(plug.sink->Wait(), absl::OkStatus());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(started[i].sink->Wait(), absl::OkStatus());
    EXPECT_EQ(started[i].sink->ids(), solo[i]);
  }
  const std::vector<size_t> rows = RowsOfSteps();
  EXPECT_THAT(std::vector<size_t>(rows.begin() + before + 1, rows.end()), AllOf(Each(8u), ::testing::SizeIs(6)));
}

TEST_F(SchedulerTest, RunsCallsInTheOrderTheyCame) {
  const Started first = RunBlocked({.max_running = 1});
  const Started second = MustStart(Prompt({2}, 1));
  const Started third = MustStart(Prompt({3}, 1));
  engine_->ReleaseSteps();
  EXPECT_EQ(third.sink->Wait(), absl::OkStatus());
  EXPECT_TRUE(first.sink->ended());
  EXPECT_TRUE(second.sink->ended());
  std::vector<int32_t> order;
  for (const auto& step : engine_->steps()) {
    if (step[0].position == 0) order.push_back(step[0].tokens[0]);
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST_F(SchedulerTest, RefusesAtOnceWhatTheQueueHasNoRoomFor) {
  const Started running = RunBlocked({.max_running = 1, .max_waiting = 2, .max_waiting_prompt_tokens = 100});
  const Started a = MustStart(Prompt(Ids(10), 1));
  EXPECT_EQ(LoadOf("m").running, 1);
  EXPECT_EQ(LoadOf("m").waiting, 1);
  EXPECT_EQ(LoadOf("m").waiting_prompt_tokens, 10);
  const Started b = MustStart(Prompt(Ids(10), 1));
  const auto refused = Start(Prompt({1}, 1), std::make_shared<GenerationRecord>());
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2 calls are waiting")));
  EXPECT_EQ(ReasonOf(refused.status()), "QUEUE_FULL");
  EXPECT_EQ(observer_.calls().back().code, absl::StatusCode::kResourceExhausted);
  engine_->ReleaseSteps();
  EXPECT_EQ(b.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(Generate(Prompt({1}, 1))->ids().size(), 1u);
  EXPECT_EQ(LoadOf("m").waiting_prompt_tokens, 0);
}

TEST_F(SchedulerTest, RefusesMorePromptTokensThanMayWait) {
  const Started running = RunBlocked({.max_running = 1, .max_waiting_prompt_tokens = 30});
  const Started a = MustStart(Prompt(Ids(20), 1));
  EXPECT_THAT(Start(Prompt(Ids(11), 1), std::make_shared<GenerationRecord>()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("20 prompt tokens are waiting")));
  const Started b = MustStart(Prompt(Ids(10), 1));
  engine_->ReleaseSteps();
  EXPECT_EQ(b.sink->Wait(), absl::OkStatus());
}

TEST_F(SchedulerTest, TakesABigCallThatNeedNotWait) {
  Run({.max_running = 1, .max_waiting_prompt_tokens = 5});
  EXPECT_EQ(Generate(Prompt(Ids(20), 1))->ids().size(), 1u);
}

TEST_F(SchedulerTest, NeverRunsQueuedCallsThatWereCancelled) {
  const Started running = RunBlocked({.max_running = 1});
  const Started a = MustStart(Prompt({101}, 1)), b = MustStart(Prompt({102}, 1)), c = MustStart(Prompt({103}, 1));
  a.call->Cancel();
  c.call->Cancel();
  c.call->Cancel();
  engine_->ReleaseSteps();
  EXPECT_THAT(a.sink->Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  EXPECT_EQ(b.sink->Wait(), absl::OkStatus());
  EXPECT_THAT(c.sink->Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  EXPECT_FALSE(a.sink->start.has_value());
  for (const auto& step : engine_->steps()) {
    for (const auto& row : step) EXPECT_THAT(row.tokens, ::testing::Not(ElementsAre(::testing::AnyOf(101, 103))));
  }
}

TEST_F(SchedulerTest, RefusesACallWhoseDeadlineHasPassedAlsoWhereTheQueueIsFull) {
  const Started running = RunBlocked({.max_running = 1, .max_waiting = 0});
  for (const absl::Duration late : {absl::ZeroDuration(), absl::Seconds(1)}) {
    EXPECT_THAT(Start(Prompt({1}, 1), std::make_shared<GenerationRecord>(), absl::Now() - late),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("deadline")));
  }
  engine_->ReleaseSteps();
}

TEST_F(SchedulerTest, EndsAQueuedCallAtItsDeadlineAlsoWhileAStepHangs) {
  const Started running = RunBlocked({.max_running = 1});
  const Started patient = MustStart(Prompt({7}, 1));
  const Started late = MustStart(Prompt({101}, 1), absl::Now() + absl::Milliseconds(20));
  const Started later = MustStart(Prompt({102}, 1), absl::Now() + absl::Milliseconds(40));
  EXPECT_THAT(late.sink->Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("deadline")));
  EXPECT_THAT(later.sink->Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("deadline")));
  EXPECT_EQ(scheduler_->Load()[0].waiting, 1);
  EXPECT_EQ(scheduler_->Load()[0].waiting_prompt_tokens, 1);
  engine_->ReleaseSteps();
  EXPECT_EQ(patient.sink->Wait(), absl::OkStatus());
  EXPECT_FALSE(late.sink->start.has_value());
}

TEST_F(SchedulerTest, StopsACallInTheMiddleOfItsStepAtTheDeadline) {
  Run();
  engine_->BlockSteps();
  const Started late = MustStart(Prompt(Ids(30), 3), absl::Now() + absl::Milliseconds(300));
  engine_->WaitUntilBlocked();
  engine_->WaitUntilARowIsStopped();
  engine_->ReleaseSteps();
  EXPECT_THAT(late.sink->Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("deadline")));
  EXPECT_EQ(engine_->steps().size(), 1u);
  EXPECT_EQ(observer_.routed("m", Phase::kPrefill).tokens, 0u);
  EXPECT_EQ(engine_->open_sequences(), 0);
}

TEST_F(SchedulerTest, FreesTheRowOfACallCancelledInItsPrefillWithinOneStep) {
  Run({.max_running = 1, .prefill_chunk = 4});
  engine_->BlockSteps();
  const Started cancelled = MustStart(Prompt(Ids(40), 3));
  engine_->WaitUntilBlocked();
  const Started next = MustStart(Prompt({1}, 1));
  cancelled.call->Cancel();
  engine_->ReleaseOneStep();
  EXPECT_THAT(cancelled.sink->Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  engine_->WaitUntilBlocked();
  EXPECT_EQ(engine_->steps().size(), 2u);
  EXPECT_THAT(engine_->steps()[1][0].tokens, ElementsAre(1));
  EXPECT_EQ(engine_->open_sequences(), 1);
  engine_->ReleaseSteps();
  EXPECT_EQ(next.sink->Wait(), absl::OkStatus());
  // The row that was stopped is in no counter.
  EXPECT_EQ(observer_.routed("m", Phase::kPrefill).tokens, 1u);
}

TEST_F(SchedulerTest, GoesOnWithTheOthersWhenOneIsCancelledInASharedStep) {
  const Started a = RunBlocked();
  const Started b = MustStart(Prompt({2}, 4));
  engine_->ReleaseOneStep();
  engine_->WaitUntilBlocked();
  a.call->Cancel();
  engine_->ReleaseSteps();
  EXPECT_THAT(a.sink->Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  EXPECT_EQ(b.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(b.sink->ids(), Generate(Prompt({2}, 4))->ids());
}

TEST_F(SchedulerTest, DoesNotStarveDecodingWhilePromptsAreRead) {
  const Started decoding = RunBlocked({.prefill_chunk = 4}, {}, 12);
  std::vector<Started> prompts;
  for (int i = 0; i < 5; ++i) prompts.push_back(MustStart(Prompt(Ids(16), 1)));
  engine_->ReleaseSteps();
  for (const Started& prompt : prompts) EXPECT_EQ(prompt.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(decoding.sink->Wait(), absl::OkStatus());
  const auto steps = engine_->steps();
  for (size_t s = 1; s < 12; ++s) {
    size_t decode_rows = 0, long_tokens = 0;
    for (const auto& row : steps[s]) {
      if (row.tokens.size() == 1) ++decode_rows;
      if (row.tokens.size() > 1) long_tokens += row.tokens.size();
    }
    EXPECT_EQ(decode_rows, 1u) << "step " << s;
    EXPECT_LE(long_tokens, 8u) << "step " << s;
    if (s < 10) {
      EXPECT_EQ(long_tokens, 8u) << "step " << s;
    }
  }
}

TEST_F(SchedulerTest, ReadsPromptsInTurns) {
  const Started plug = RunBlocked({.prefill_chunk = 4}, {}, 1);
  const auto sink = std::make_shared<ScoreRecord>();
  ScoreRequest score;
  score.model = "m";
  score.input.token_ids = Ids(60);
  score.window_size = 20;
  score.stride = 1;  // many windows
  ASSERT_TRUE(scheduler_->StartScore(score, {}, sink).ok());
  ASSERT_TRUE(scheduler_->StartScore(score, {}, std::make_shared<ScoreRecord>()).ok());
  ASSERT_TRUE(scheduler_->StartScore(score, {}, std::make_shared<ScoreRecord>()).ok());
  const Started prompt = MustStart(Prompt(Ids(8), 1));
  engine_->ReleaseSteps();
  EXPECT_EQ(prompt.sink->Wait(), absl::OkStatus());
  // Two of four long rows go in a step, so the prompt's two chunks take four.
  const auto steps = engine_->steps();
  size_t last = 1;
  while (last < steps.size() &&
         std::none_of(steps[last].begin(), steps[last].end(), [](const auto& row) { return row.sampled; })) {
    ++last;
  }
  EXPECT_LE(last, 5u);
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
}

TEST_F(SchedulerTest, PausesACallWhoseReaderIsSlowAndGoesOnWhenItCanAccept) {
  Run();
  const Started slow{.sink = std::make_shared<GenerationRecord>(), .call = nullptr};
  slow.sink->SetAccepts(false);
  const auto call = Start(Prompt({1}, 4), slow.sink);
  ASSERT_TRUE(call.ok());
  slow.sink->WaitForEvents(1);  // its start
  EXPECT_EQ(Generate(Prompt({2}, 4))->ids().size(), 4u);
  EXPECT_EQ(slow.sink->events(), 1);
  slow.sink->SetAccepts(true);
  (*call)->Resume();
  EXPECT_EQ(slow.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(slow.sink->ids(), Generate(Prompt({1}, 4))->ids());
}

TEST_F(SchedulerTest, GivesUpAReaderThatStaysSlow) {
  Run({.stall_limit = absl::Milliseconds(40)});
  auto sink = std::make_shared<GenerationRecord>();
  sink->SetAccepts(false);
  const absl::Time start = absl::Now();
  ASSERT_TRUE(Start(Prompt({1}, 4), sink).ok());
  const absl::Status status = sink->Wait();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("too slow")));
  EXPECT_EQ(ReasonOf(status), "READER_TOO_SLOW");
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(40));
  EXPECT_EQ(engine_->open_sequences(), 0);
}

TEST_F(SchedulerTest, LetsACallWaitForMemoryAndThenRunsIt) {
  const Started first = RunBlocked({}, {.context = 64, .kv_pages = 4, .page_tokens = 16}, 40);
  const Started second = MustStart(Prompt(Ids(20), 10));
  engine_->ReleaseOneStep();
  engine_->WaitUntilBlocked();
  EXPECT_EQ(LoadOf("m").running, 1);
  EXPECT_EQ(LoadOf("m").waiting, 1);
  engine_->ReleaseSteps();
  EXPECT_EQ(first.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(second.sink->Wait(), absl::OkStatus());
}

TEST_F(SchedulerTest, FailsACallThatNoMemoryWillEverCome) {
  Run();
  engine_->FailOpens(absl::ResourceExhaustedError("no pages"));
  const Started full = MustStart(Prompt({1}, 4));
  const absl::Status status = full.sink->Wait();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no pages")));
  EXPECT_EQ(ReasonOf(status), "KV_MEMORY_FULL");
  engine_->FailOpens(absl::InvalidArgumentError("never fits"));
  EXPECT_THAT(MustStart(Prompt({1}, 4)).sink->Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  engine_->FailOpens(absl::OkStatus());
  EXPECT_EQ(Generate(Prompt({1}, 4))->ids().size(), 4u);
}

TEST_F(SchedulerTest, FailsTheCallsOfAStepThatFailsAndGoesOn) {
  Run();
  engine_->BlockSteps();
  const Started a = MustStart(Prompt({1}, 4));
  engine_->WaitUntilBlocked();
  engine_->FailNextStep(absl::ResourceExhaustedError("out of memory"));
  engine_->ReleaseSteps();
  EXPECT_THAT(a.sink->Wait(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("out of memory")));
  EXPECT_EQ(engine_->open_sequences(), 0);
  EXPECT_EQ(Generate(Prompt({1}, 4))->ids().size(), 4u);
}

TEST_F(SchedulerTest, GivesEveryModelItsTurn) {
  FakeEngine* other = nullptr;
  ASSERT_TRUE(catalog_.Add(MakeFakeModel("other", {}, &other)).ok());
  Run();
  engine_->BlockSteps();
  const Started here = MustStart(Prompt({1}, 20));
  engine_->WaitUntilBlocked();
  GenerateRequest request = Prompt({1}, 5);
  request.model = "other";
  const Started there = MustStart(request);
  for (int i = 0; i < 7; ++i) {
    engine_->ReleaseOneStep();
    engine_->WaitUntilBlocked();
  }
  EXPECT_EQ(there.sink->Wait(), absl::OkStatus());
  EXPECT_FALSE(here.sink->ended());
  engine_->ReleaseSteps();
  EXPECT_EQ(here.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(scheduler_->Load().size(), 2u);
}

TEST_F(SchedulerTest, AnswersLoadAndHeartbeatWhileAStepHangs) {
  const Started hanging = RunBlocked();
  const absl::Time start = absl::Now();
  while (scheduler_->SinceHeartbeat() < absl::Milliseconds(50) && absl::Now() - start < absl::Seconds(30)) {
    EXPECT_EQ(LoadOf("m").running, 1);
  }
  EXPECT_GE(scheduler_->SinceHeartbeat(), absl::Milliseconds(50));
  engine_->ReleaseSteps();
  EXPECT_EQ(hanging.sink->Wait(), absl::OkStatus());
  while (scheduler_->SinceHeartbeat() > absl::Milliseconds(1500)) {
    ASSERT_LT(absl::Now() - start, absl::Seconds(30));
  }
}

TEST_F(SchedulerTest, RefusesNewCallsWhenDrainingAndFinishesTheOthers) {
  const Started running = RunBlocked({.max_running = 1});
  const Started waiting = MustStart(Prompt({2}, 2));
  scheduler_->Drain();
  const auto refused = Start(Prompt({1}, 1), std::make_shared<GenerationRecord>());
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  EXPECT_EQ(ReasonOf(refused.status()), "DRAINING");
  engine_->ReleaseSteps();
  EXPECT_EQ(running.sink->Wait(), absl::OkStatus());
  EXPECT_EQ(waiting.sink->Wait(), absl::OkStatus());
}

TEST_F(SchedulerTest, EndsEveryCallAtShutdown) {
  Run({.max_running = 1});
  Started running{.sink = std::make_shared<GenerationRecord>(), .call = nullptr};
  running.sink->SetAccepts(false);
  running.call = *Start(Prompt({1}, 2), running.sink);
  running.sink->WaitForEvents(1);
  const Started waiting = MustStart(Prompt({2}, 2));
  scheduler_->Shutdown();
  for (const Started& started : {running, waiting}) {
    EXPECT_TRUE(started.sink->ended());
    EXPECT_THAT(started.sink->Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  }
  EXPECT_EQ(engine_->open_sequences(), 0);
  scheduler_.reset();
  running.call->Cancel();  // outlives the scheduler
  running.call->Resume();
}

TEST_F(SchedulerTest, FreesWhatACallHeldWhenItEnds) {
  const auto sink = std::make_shared<GenerationRecord>();
  const auto call = Start(Prompt({1}, 2), sink);
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(sink->Wait(), absl::OkStatus());
  while (sink.use_count() > 1) {
  }
  EXPECT_EQ(LoadOf("m").running, 0);
  EXPECT_EQ(LoadOf("m").kv.pages_used, 0);
}

TEST_F(SchedulerTest, AnswersAStormOfStartsAndCancels) {
  Run({.max_running = 4, .max_waiting = 8});
  int refused = 0;
  std::vector<Started> started;
  for (int i = 0; i < 1000; ++i) {
    const auto sink = std::make_shared<GenerationRecord>();
    const auto call = Start(Prompt(Ids(8), 8), sink);
    if (call.ok()) {
      (*call)->Cancel();
      started.push_back({sink, *call});
    } else {
      ++refused;
      EXPECT_THAT(call, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
    }
    EXPECT_LE(LoadOf("m").running, 4);
    EXPECT_LE(LoadOf("m").waiting, 12);
  }
  for (const Started& s : started) {
    const absl::Status status = s.sink->Wait();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
  EXPECT_EQ(observer_.calls().size(), 1000u);
  EXPECT_EQ(engine_->open_sequences(), 0);
  EXPECT_EQ(refused + static_cast<int>(started.size()), 1000);
}

}  // namespace
}  // namespace gatehouse::testing
