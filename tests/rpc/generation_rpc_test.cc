#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "server/base/strings.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Eq;
using ::testing::SizeIs;

constexpr char kRunning[] = R"(gatehouse_requests_running{model="m"})";
constexpr char kWaiting[] = R"(gatehouse_requests_waiting{model="m"})";

TEST_F(RpcTest, AGenerationStreamsItsStartItsTokensAndASummary) {
  StartServer();
  for (int position = 2; position < 7; ++position) engine_->SetTokenAt(position, "hello"[position - 2]);
  v1::GenerateRequest request = Prompt("ab", 5);
  request.set_top_logprobs(3);
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  ASSERT_THAT(generated.responses, SizeIs(7));
  EXPECT_EQ(generated.responses.front().start().prompt_tokens(), 2);
  EXPECT_EQ(generated.responses.front().start().max_tokens(), 5);
  EXPECT_EQ(generated.text(), "hello");
  for (int i = 0; i < 5; ++i) {
    const v1::GeneratedToken& token = generated.responses[i + 1].token();
    EXPECT_EQ(token.id(), "hello"[i]);
    EXPECT_EQ(token.raw(), std::string(1, "hello"[i]));
    EXPECT_LT(token.logprob(), 0);
    EXPECT_THAT(token.top(), SizeIs(3));
    EXPECT_FALSE(token.has_insight());
  }
  EXPECT_EQ(generated.summary().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(generated.summary().prompt_tokens(), 2);
  EXPECT_EQ(generated.summary().generated_tokens(), 5);
  EXPECT_EQ(generated.summary().routing().layers_size(), 3);
  EXPECT_EQ(generated.summary().routing().linear_fraction(), 0);
}

TEST_F(RpcTest, AStopStringEndsAGenerationAndIsNamed) {
  StartServer();
  for (int position = 1; position < 5; ++position) engine_->SetTokenAt(position, "abXY"[position - 1]);
  v1::GenerateRequest request = Prompt("a", 10);
  request.mutable_stop()->add_strings("XY");
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok());
  EXPECT_EQ(generated.text(), "ab");
  EXPECT_EQ(generated.summary().finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(generated.summary().matched_stop(), "XY");
}

TEST_F(RpcTest, RecordsNameTheCalibrationsNeuronsWhereTheyExist) {
  StartServer();
  v1::GenerateRequest request = Prompt("abcdefgh", 6);
  request.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
  request.mutable_records()->set_routing(true);
  request.mutable_records()->set_nonlinearity(true);
  request.mutable_records()->set_consensus(true);
  request.set_record_prompt(true);
  const Generated generated = Generate(request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  std::vector<v1::TokenInsight> insights;
  for (const v1::GenerateResponse& response : generated.responses) {
    for (const v1::TokenInsight& insight : response.prompt().tokens()) insights.push_back(insight);
    if (response.token().has_insight()) insights.push_back(response.token().insight());
  }
  ASSERT_THAT(insights, SizeIs(8 + 5));  // the last token is never fed back
  uint64_t linear = 0;
  int fired = 0;
  for (size_t i = 0; i < insights.size(); ++i) {
    const v1::TokenInsight& insight = insights[i];
    EXPECT_EQ(insight.position(), i);
    ASSERT_THAT(insight.paths(), SizeIs(3));
    ASSERT_THAT(insight.gate_margin(), SizeIs(3));
    ASSERT_THAT(insight.consensus(), SizeIs(3));
    for (int layer = 0; layer < 3; ++layer) {
      const bool is_linear = insight.paths(layer) == v1::MLP_PATH_LINEAR;
      linear += is_linear ? 1 : 0;
      if (i > 0) {
        EXPECT_EQ(insight.gate_margin(layer) > 0, is_linear);
      }
      EXPECT_EQ(std::isnan(insight.nonlinearity(layer)), is_linear);
      EXPECT_EQ(insight.consensus(layer).layer(), layer);
      EXPECT_EQ(insight.consensus(layer).has_level(), !is_linear);
      EXPECT_EQ(static_cast<uint32_t>(insight.consensus(layer).fired_size()), insight.consensus(layer).level());
      EXPECT_THAT(insight.consensus(layer).fired(), Each(AnyOf(Eq(3u), Eq(5u), Eq(7u))));
      EXPECT_THAT(insight.consensus(layer).exceptions_fired(), Each(Eq(9u)));
      fired += insight.consensus(layer).fired_size();
    }
  }
  EXPECT_EQ(linear, generated.summary().routing().linear_decisions());
  EXPECT_GT(linear, 0);
  EXPECT_GT(fired, 0);
  EXPECT_EQ(generated.summary().routing().calibration(), "cal");
}

TEST_F(RpcTest, TheMetricsEqualWhatTheResponsesReport) {
  StartServer();
  uint64_t full[3] = {}, linear[3] = {}, ladder[3] = {}, skip[3] = {}, ladders = 0, skips = 0;
  uint64_t prompt = 0, generated_tokens = 0;
  for (int i = 0; i < 5; ++i) {
    v1::GenerateRequest request = Prompt(StrCat("prompt ", i), static_cast<uint32_t>(3 + i));
    if (i < 3) {
      request.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
      request.mutable_gating()->set_operating_point("5%");
    } else {
      request.mutable_gating()->set_mode(v1::GatingPolicy::MODE_QUORUM);
      request.mutable_gating()->set_quorum(2);
      request.mutable_gating()->set_quorum_path(i == 3 ? v1::MLP_PATH_SKIP : v1::MLP_PATH_LINEAR);
    }
    const Generated generated = Generate(request);
    ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
    ladders += generated.summary().routing().ladder_decisions();
    skips += generated.summary().routing().skip_decisions();
    prompt += generated.summary().prompt_tokens();
    generated_tokens += generated.summary().generated_tokens();
    for (int layer = 0; layer < 3; ++layer) {
      full[layer] += generated.summary().routing().layers(layer).full_tokens();
      linear[layer] += generated.summary().routing().layers(layer).linear_tokens();
      ladder[layer] += generated.summary().routing().layers(layer).ladder_tokens();
      skip[layer] += generated.summary().routing().layers(layer).skip_tokens();
    }
  }
  const auto routed = [&](int layer, const char* path, const char* phase) {
    return Metric(StrCat("gatehouse_mlp_tokens_total{layer=\"", layer, "\",model=\"m\",path=\"", path, "\",phase=\"",
                         phase, "\"}"));
  };
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(routed(layer, "full", "prefill") + routed(layer, "full", "decode"), full[layer]);
    EXPECT_EQ(routed(layer, "linear", "prefill") + routed(layer, "linear", "decode"), linear[layer]);
    EXPECT_EQ(routed(layer, "ladder", "prefill") + routed(layer, "ladder", "decode"), ladder[layer]);
    EXPECT_EQ(routed(layer, "skip", "prefill") + routed(layer, "skip", "decode"), skip[layer]);
    EXPECT_EQ(routed(layer, "full", "score") + routed(layer, "linear", "score") + routed(layer, "ladder", "score") +
                  routed(layer, "skip", "score"),
              0);
    EXPECT_EQ(full[layer] + linear[layer] + ladder[layer] + skip[layer], prompt + generated_tokens - 5);
  }
  EXPECT_EQ(skip[0] + skip[1] + skip[2], skips);
  EXPECT_GT(skips, 0u);
  EXPECT_EQ(ladder[0] + ladder[1] + ladder[2], ladders);
  EXPECT_GT(ladders, 0u);
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="OK",method="generate",model="m"})"), 5);
  EXPECT_EQ(Metric(R"(gatehouse_prompt_tokens_total{method="generate",model="m"})"), prompt);
  EXPECT_EQ(Metric(R"(gatehouse_generated_tokens_total{model="m"})"), generated_tokens);
  EXPECT_EQ(Metric(R"(gatehouse_finish_reasons_total{model="m",reason="length"})"), 5);
  EXPECT_EQ(Metric(R"(gatehouse_time_to_first_token_seconds_count{model="m"})"), 5);
  EXPECT_EQ(Metric(R"(gatehouse_inter_token_seconds_count{model="m"})"), generated_tokens - 5);
  EXPECT_EQ(Metric(R"(gatehouse_request_seconds_count{method="generate",model="m"})"), 5);
  EXPECT_EQ(Metric(kRunning), 0);
  EXPECT_EQ(Metric(R"(gatehouse_kv_pages_used{model="m"})"), 0);
}

TEST_F(RpcTest, CancellingFreesTheRowWithinOneStep) {
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, Prompt("abc", 50));
  engine_->WaitUntilBlocked();
  EXPECT_EQ(engine_->open_sequences(), 1);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // Step by step, as the news of it may take a moment to reach the server.
  WaitUntil(
      [&] {
        engine_->ReleaseOneStep();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return engine_->open_sequences() == 0;
      },
      "the sequence is closed");
  WaitUntil([&] { return server_->calls_in_work() == 0; }, "the call is over");
  EXPECT_LT(engine_->steps().size(), 25);
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="CANCELLED",method="generate",model="m"})"), 1);
}

TEST_F(RpcTest, NothingIsSentBeforeACallIsAdmitted) {
  scheduler_options_.max_running = 1;
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext first_context, second_context;
  const auto first = generation_->Generate(&first_context, Prompt("abc", 1));
  engine_->WaitUntilBlocked();
  const auto second = generation_->Generate(&second_context, Prompt("abc", 1));
  std::atomic<bool> has_metadata{false};
  std::thread waiter([&] {
    second->WaitForInitialMetadata();
    has_metadata = true;
  });
  WaitUntil([&] { return Metric(kWaiting) == 1; }, "the second call waits");
  EXPECT_FALSE(has_metadata);
  engine_->ReleaseSteps();
  waiter.join();
  EXPECT_THAT(ReadAll(*second), SizeIs(3));
  EXPECT_TRUE(second->Finish().ok());
  EXPECT_THAT(ReadAll(*first), SizeIs(3));
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(RpcTest, ACallWhoseDeadlinePassesInTheQueueIsNeverRun) {
  scheduler_options_.max_running = 1;
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext context;
  const auto first = generation_->Generate(&context, Prompt("abc", 1));
  engine_->WaitUntilBlocked();
  for (const int milliseconds : {-1000, 0, 1, 50}) {
    grpc::ClientContext late;
    late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(milliseconds));
    EXPECT_EQ(Generate(Prompt("abcd", 5), late).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // The server counts a call's time from its arrival, so the client's runs out first.  One that comes after them on
  // the same connection and is answered shows that they have arrived.
  grpc::ClientContext after;
  v1::ListModelsResponse models;
  EXPECT_TRUE(models_->ListModels(&after, {}, &models).ok());
  WaitUntil([&] { return Metric(kWaiting) == 0 && server_->calls_in_work() == 1; }, "the late calls are over");
  engine_->ReleaseSteps();
  EXPECT_THAT(ReadAll(*first), SizeIs(3));
  for (const auto& step : engine_->steps()) {
    for (const auto& row : step) EXPECT_EQ(row.tokens.size(), 3);
  }
}

TEST_F(RpcTest, ADeadlineBeyondTheClocksRangeIsNoneThatHasPassed) {
  StartServer();
  for (const int64_t hours : {int64_t{2'562'047}, int64_t{99'999'999}}) {
    grpc::ClientContext context;
    context.set_deadline(gpr_time_from_hours(hours, GPR_TIMESPAN));
    const auto generated = Generate(Prompt("abc", 1), context);
    EXPECT_TRUE(generated.status.ok()) << hours << ": " << generated.status.error_message();
  }
}

TEST_F(RpcTest, ACallWhoseDeadlinePassesWhileItRunsEnds) {
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  const auto reader = generation_->Generate(&context, Prompt("abc", 50));
  engine_->WaitUntilBlocked();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  engine_->WaitUntilARowIsStopped();  // the server may notice later than the client
  engine_->ReleaseSteps();
  WaitUntil([&] { return engine_->open_sequences() == 0; }, "the sequence is closed");
  EXPECT_LE(engine_->steps().size(), 2);
}

TEST_F(RpcTest, AFullQueueRefusesAtOnce) {
  scheduler_options_.max_running = 1;
  scheduler_options_.max_waiting = 1;
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext first_context, second_context;
  const auto first = generation_->Generate(&first_context, Prompt("abc", 1));
  engine_->WaitUntilBlocked();
  const auto second = generation_->Generate(&second_context, Prompt("abc", 1));
  WaitUntil([&] { return Metric(kWaiting) == 1; }, "the second call waits");
  const Generated refused = Generate(Prompt("abc", 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonIn(refused.status), "QUEUE_FULL");
  engine_->ReleaseSteps();
  EXPECT_THAT(ReadAll(*first), SizeIs(3));
  EXPECT_THAT(ReadAll(*second), SizeIs(3));
}

TEST_F(RpcTest, ADrainingServerRefusesNewCallsAndFinishesRunningOnes) {
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext context;
  const auto running = generation_->Generate(&context, Prompt("abc", 4));
  engine_->WaitUntilBlocked();
  scheduler_->Drain();
  const Generated refused = Generate(Prompt("abc", 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonIn(refused.status), "DRAINING");
  std::thread stop([&] { server_->Shutdown(absl::Now() + absl::Seconds(60)); });
  engine_->ReleaseSteps();
  EXPECT_THAT(ReadAll(*running), SizeIs(6));
  EXPECT_TRUE(running->Finish().ok());
  stop.join();
}

TEST_F(RpcTest, ShutdownCancelsWhatOutlastsItsDeadline) {
  StartServer();
  engine_->BlockSteps();
  grpc::ClientContext context;
  const auto running = generation_->Generate(&context, Prompt("abc", 4));
  engine_->WaitUntilBlocked();
  server_->Shutdown(absl::Now() + absl::Milliseconds(50));  // though the engine hangs
  (void)ReadAll(*running);
  EXPECT_FALSE(running->Finish().ok());
}

}  // namespace
}  // namespace gatehouse::testing
