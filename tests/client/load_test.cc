#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "client/load/figures.h"
#include "client/load/load_report.h"
#include "client/load/load_run.h"
#include "client/load/trace.h"
#include "client/load/workload.h"
#include "tests/client/fake_server.h"

namespace gatehouse::client {
namespace {

using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<TraceEntry>> Trace(const std::string& text, size_t limit = 1000) {
  std::istringstream csv(text);
  return ReadTrace(csv, limit);
}

TEST(Trace, ReadsTheAzureForm) {
  // No newline at the end, as the published files have it.
  const auto trace = Trace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 18:15:46.6805900,374,44\r\n"
      "2023-11-16 18:15:50.9951690,396,109");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].seconds, 0);
  EXPECT_EQ((*trace)[0].prompt_tokens, 374u);
  EXPECT_THAT((*trace)[1].seconds, DoubleNear(4.314579, 1e-6));
  EXPECT_EQ((*trace)[1].generated_tokens, 109u);
}

TEST(Trace, TakesColumnsAndTimesInOtherForms) {
  const auto trace = Trace(
      "generatedtokens, extra ,CONTEXTTOKENS,TIMESTAMP\n"
      "7,x,3,2024-05-10 00:00:02.5+00:00\n"
      "\n"
      "8,y,4,2024-05-10 00:00:00+00:00\n",
      1);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 1u);  // the earliest
  EXPECT_EQ((*trace)[0].prompt_tokens, 4u);
  EXPECT_EQ(Trace("TIMESTAMP,ContextTokens,GeneratedTokens\n10.5,1,1\n11,1,1\n")->at(1).seconds, 0.5);
  // As a spreadsheet saves it.
  EXPECT_TRUE(Trace("\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\r\n1,1,1\r\n").ok());
}

TEST(Trace, NamesTheLineAndTheColumnThatAreWrong) {
  const auto error = [](const std::string& text) { return std::string(Trace(text).status().message()); };
  const std::string heading = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  EXPECT_THAT(error(""), HasSubstr("empty"));
  EXPECT_THAT(error(heading), HasSubstr("no requests"));
  EXPECT_THAT(error("a,b,c\n1,2,3\n"), HasSubstr("line 1 of the trace: it names no column TIMESTAMP"));
  EXPECT_THAT(error(heading + "1,2,3\nyesterday,2,3\n"), HasSubstr("line 3 of the trace: TIMESTAMP 'yesterday'"));
  EXPECT_THAT(error(heading + "1,-2,3\n"), HasSubstr("line 2 of the trace: ContextTokens '-2'"));
  EXPECT_THAT(error(heading + "1,2,99999999999\n"), HasSubstr("GeneratedTokens"));
  EXPECT_THAT(error(heading + "1,2\n"), HasSubstr("fewer fields"));
  EXPECT_THAT(error(heading + "\x1b[2J" + std::string(5000, 'x') + ",2,3\n"), HasSubstr("TIMESTAMP '\\x1b[2Jxx"));
  EXPECT_LT(error(heading + std::string(5000, 'x') + ",2,3\n").size(), 200u);
}

TEST(Workload, ArrivesAtTheRateAndTheSameEachTime) {
  LengthLimit lengths(1000);
  const auto times = [&](uint64_t seed) {
    std::vector<double> at;
    const CallPlan plan = RandomPlan(50, {1, 1}, {1, 1}, 5000, seed, lengths);
    while (const auto call = plan()) at.push_back(call->at);
    return at;
  };
  const auto first = times(7);
  ASSERT_EQ(first.size(), 5000u);
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()));
  EXPECT_THAT(first.back(), DoubleNear(100, 6));
  // Gaps of a Poisson process are as wide as their mean.
  double squares = 0;
  for (size_t i = 1; i < first.size(); ++i) squares += std::pow((first[i] - first[i - 1]) * 50 - 1, 2);
  EXPECT_THAT(squares / 5000, DoubleNear(1, 0.15));
  EXPECT_EQ(first, times(7));
  EXPECT_NE(first, times(8));
}

TEST(Workload, ReplaysATraceFasterAndFitsTheContext) {
  LengthLimit lengths(100);
  const CallPlan plan = TracePlan({{0, 10, 5}, {4, 400, 20}, {6, 30, 90}, {7, 0, 0}}, 2, lengths);
  std::vector<std::tuple<double, uint32_t, uint32_t>> calls;
  while (const auto call = plan()) calls.emplace_back(call->at, call->prompt_tokens, call->generated_tokens);
  EXPECT_THAT(calls,
              ElementsAre(std::tuple(0, 10, 5), std::tuple(2, 80, 20), std::tuple(3, 30, 50), std::tuple(3.5, 1, 1)));
  EXPECT_EQ(lengths.cut(), 2u);
}

TEST(Workload, PromptsHaveExactlyTheLengthAskedFor) {
  const PromptSource random(50, {0, 7}, 1);
  std::set<int32_t> ids;
  for (uint64_t number = 0; number < 50; ++number) {
    const auto prompt = random.Make(number, 20);
    EXPECT_EQ(prompt.size(), 20u);
    EXPECT_EQ(prompt, random.Make(number, 20));
    ids.insert(prompt.begin(), prompt.end());
  }
  EXPECT_EQ(ids.size(), 48u);
  EXPECT_FALSE(ids.contains(0) || ids.contains(7));
  EXPECT_EQ(*ids.rbegin(), 49);
  const PromptSource text({5, 6, 7}, 1);
  const auto prompt = text.Make(3, 7);
  ASSERT_EQ(prompt.size(), 7u);
  for (size_t i = 1; i < 7; ++i) EXPECT_EQ(prompt[i], prompt[i - 1] == 7 ? 5 : prompt[i - 1] + 1);
}

TEST(Figures, TakeQuantilesByNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Quantiles quantiles(values);
  EXPECT_EQ(quantiles.p50, 50);
  EXPECT_EQ(quantiles.p90, 90);
  EXPECT_EQ(quantiles.p99, 99);
  EXPECT_EQ(quantiles.max, 100);
  EXPECT_EQ(quantiles.mean, 50.5);
  EXPECT_TRUE(std::isnan(Quantiles({}).p50));
}

CallRecord Call(double intended, double sent, double first, std::vector<float> gaps, double ended) {
  CallRecord call;
  call.intended = intended;
  call.sent = sent;
  call.first_token = first;
  call.gaps = std::move(gaps);
  call.ended = ended;
  call.prompt_tokens = 10;
  call.received_tokens = static_cast<uint32_t>(call.gaps.size() + 1);
  return call;
}

LoadResult SomeCalls() {
  LoadResult result;
  result.calls.push_back(Call(0, 0, 0.1, {0.1f, 0.3f}, 0.5));
  result.calls.push_back(Call(1, 3, 3.1, {0.01f}, 3.2));  // sent 2 s late
  result.calls.push_back(Call(2, 2, 2.1, {}, 2.1));
  result.calls.push_back(Call(2, 2, 2.2, {0.1f}, 4));
  result.calls.back().status = absl::DeadlineExceededError("too slow");
  result.calls.push_back({});
  result.calls.back().status = absl::ResourceExhaustedError("full");
  result.calls.push_back({});
  result.calls.back().status = absl::CancelledError("");
  result.seconds = 4;
  return result;
}

TEST(Figures, CountLatencyFromWhenARequestWasToBeSent) {
  const LoadFigures figures(SomeCalls(), {});
  EXPECT_DOUBLE_EQ(figures.first_token.max, 2.1);
  EXPECT_DOUBLE_EQ(figures.end_to_end.max, 2.2);
  EXPECT_DOUBLE_EQ(figures.lateness.max, 2);
  EXPECT_EQ(figures.end_to_end.count, 3u);
  EXPECT_EQ(figures.first_token.count, 4u);
  EXPECT_EQ(figures.inter_token.count, 4u);
  EXPECT_EQ(figures.time_per_token.count, 3u);  // of calls of two tokens and more
  EXPECT_FLOAT_EQ(static_cast<float>(figures.time_per_token.max), 0.2f);
}

TEST(Figures, CallARequestGoodThatKeepsEveryObjective) {
  const auto good = [](std::optional<double> first, std::optional<double> between, std::optional<double> whole) {
    return LoadFigures(SomeCalls(), {first, between, whole}).good;
  };
  EXPECT_EQ(good({}, {}, {}), 3u);
  EXPECT_EQ(good(0.2, {}, {}), 2u);
  EXPECT_EQ(good({}, 0.15, {}), 2u);  // in the mean: 0.2 is not kept
  EXPECT_EQ(good({}, 0.25, {}), 3u);
  EXPECT_EQ(good(0.2, {}, 0.2), 1u);
  EXPECT_EQ(LoadFigures(SomeCalls(), {}).PerSecond(3), 0.75);
}

TEST(Figures, CountErrorsByCodeAndTellThemFromWhatTheUserEnded) {
  LoadResult result = SomeCalls();
  EXPECT_EQ(LoadFigures(result, {}).failed, 3u);
  result.interrupted = true;
  const LoadFigures figures(result, {});
  EXPECT_EQ(figures.failed, 2u);
  EXPECT_EQ(figures.unfinished, 1u);
  EXPECT_EQ(figures.errors.at({"DEADLINE_EXCEEDED", ""}).count, 1u);
  EXPECT_EQ(figures.errors.at({"RESOURCE_EXHAUSTED", ""}).message, "full");
  // A token is a token, whatever became of its call.
  EXPECT_EQ(figures.generated_tokens, 8u);
}

TEST(LoadReport, HasColumnsOfOneLengthAndPlotsOverThem) {
  LoadResult result = SomeCalls();
  result.routing.layers = {{10, 30, 0, 0}, {40, 0, 0, 0}};
  const v1::Report report = MakeLoadReport(v1::DescribeModelResponse(), result, LoadFigures(result, {}), {});
  std::set<std::string> columns;
  for (const auto& table : report.tables()) {
    int rows = -1;
    for (const auto& column : table.columns()) {
      const int size = column.has_strings() ? column.strings().values_size() : column.numbers().values_size();
      EXPECT_TRUE(rows < 0 || rows == size) << table.name() << "." << column.name();
      rows = size;
      columns.insert(table.name() + "." + column.name());
    }
  }
  for (const char* table : {"summary.value", "latency.p99", "errors.code", "routing.linear", "timeline.seconds"}) {
    EXPECT_TRUE(columns.contains(table)) << table;
  }
  ASSERT_GE(report.plots_size(), 4);
  for (const auto& plot : report.plots()) {
    EXPECT_TRUE(columns.contains(plot.table() + "." + plot.x()));
    EXPECT_TRUE(columns.contains(plot.table() + "." + plot.y()));
  }
  EXPECT_THAT(report.summary(), HasSubstr("37.5% linear, 3 errors"));
}

// Answers with as many tokens as are asked for.
FakeStatus GenerateAll(const v1::GenerateRequest& request, const testing::FakeStream<v1::GenerateResponse>& stream) {
  v1::GenerateResponse response;
  response.mutable_start();
  stream.write(response);
  response.mutable_token();
  for (uint32_t i = 0; i < request.max_tokens(); ++i) stream.write(response);
  response.mutable_summary()->set_queue_seconds(0.25);
  auto& routing = *response.mutable_summary()->mutable_routing();
  routing.set_decisions(4);
  routing.set_mlp_work_saved(0.5);
  auto& layer = *routing.add_layers();
  layer.set_layer(1);
  layer.set_linear_tokens(3);
  layer.set_full_tokens(1);
  stream.write(response);
  return {};
}

class Load : public ::testing::Test {
 protected:
  // `concurrency` 0 is an open loop.
  LoadResult Run(const CallPlan& plan, size_t concurrency, absl::Duration call_timeout, FakeHandlers handlers,
                 double duration = 0) {
    FakeServer server(std::move(handlers));
    auto client = Client::Create({.server = server.address(), .attempts = 1, .own_connection = true});
    LoadOptions options;
    options.clients = {client->get()};
    options.concurrency = concurrency;
    options.call_timeout = call_timeout;
    options.duration = duration;
    options.canceller = &canceller_;
    options.make_request = [](const PlannedCall& call, uint64_t number) {
      v1::GenerateRequest request;
      request.set_max_tokens(call.generated_tokens);
      request.mutable_sampling()->set_seed(number);
      return request;
    };
    return RunLoad(plan, options);
  }
  CallPlan Plan(double rate, size_t limit) { return RandomPlan(rate, {8, 8}, {4, 4}, limit, 1, lengths_); }

  Canceller canceller_;
  LengthLimit lengths_{1000};
};

TEST_F(Load, AClosedLoopKeepsSoManyRunning) {
  std::atomic<int> running = 0, most = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto& request, const auto& stream) {
    const int now = ++running;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    const FakeStatus status = GenerateAll(request, stream);
    --running;
    return status;
  };
  const LoadResult result = Run(Plan(0, 40), 4, absl::Seconds(60), handlers);
  EXPECT_EQ(result.calls.size(), 40u);
  EXPECT_LE(most, 4);
  for (const CallRecord& call : result.calls) {
    EXPECT_TRUE(call.ok()) << call.status;
    EXPECT_EQ(call.received_tokens, 4u);
    EXPECT_EQ(call.gaps.size(), 3u);
    EXPECT_EQ(call.queue_seconds, 0.25);
    EXPECT_LE(call.sent, *call.first_token);
    EXPECT_LE(*call.first_token, call.ended);
  }
  EXPECT_EQ(result.routing.layers.at(1).linear, 120u);
  EXPECT_EQ(result.routing.Sum().all(), 160u);
  EXPECT_DOUBLE_EQ(result.routing.work_saved, 0.5);
}

TEST_F(Load, HoldsHundredsOfStreamsAtOnce) {
  // No call ends before all have come.
  std::atomic<int> arrived = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto& request, const auto& stream) {
    ++arrived;
    while (arrived < 256 && !stream.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return GenerateAll(request, stream);
  };
  const LoadResult result = Run(Plan(0, 256), 256, absl::Seconds(60), handlers);
  EXPECT_EQ(LoadFigures(result, {}).succeeded, 256u);
}

TEST_F(Load, AnOpenLoopSendsWhetherOrNotEarlierOnesHaveEnded) {
  std::atomic<int> arrived = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto& request, const auto& stream) {
    ++arrived;
    while (arrived < 10 && !stream.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return GenerateAll(request, stream);
  };
  const LoadResult result = Run(Plan(200, 10), 0, absl::Seconds(60), handlers);
  EXPECT_EQ(LoadFigures(result, {}).succeeded, 10u);
  EXPECT_GT(result.calls.back().intended, 0);
  for (const CallRecord& call : result.calls) EXPECT_GE(call.sent, call.intended);
}

TEST_F(Load, ADeadlineIsAnErrorOfItsCall) {
  FakeHandlers handlers;
  handlers.generate = [&](const auto& request, const auto& stream) {
    if (request.sampling().seed() % 2 == 0) return GenerateAll(request, stream);
    while (!stream.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return FakeStatus{};
  };
  const LoadResult result = Run(Plan(0, 4), 2, absl::Milliseconds(300), handlers);
  const LoadFigures figures(result, {});
  EXPECT_EQ(figures.succeeded, 2u);
  EXPECT_EQ(figures.errors.at({"DEADLINE_EXCEEDED", ""}).count, 2u);
}

TEST_F(Load, EndsAtOnceWhenInterruptedAndKeepsWhatThereIs) {
  std::atomic<int> arrived = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto& request, const auto& stream) {
    if (++arrived <= 3) return GenerateAll(request, stream);
    canceller_.Cancel();
    while (!stream.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return FakeStatus{};
  };
  const LoadResult result = Run(Plan(0, 1'000'000), 1, absl::InfiniteDuration(), handlers);
  EXPECT_TRUE(result.interrupted);
  const LoadFigures figures(result, {});
  EXPECT_EQ(figures.succeeded, 3u);
  EXPECT_EQ(figures.unfinished, 1u);
}

TEST_F(Load, SendsNothingMoreAfterItsDuration) {
  FakeHandlers handlers;
  handlers.generate = GenerateAll;
  const LoadResult result = Run(Plan(0, std::numeric_limits<size_t>::max()), 2, absl::Seconds(60), handlers, 0.1);
  EXPECT_FALSE(result.interrupted);
  EXPECT_FALSE(result.calls.empty());
  for (const CallRecord& call : result.calls) EXPECT_LT(call.intended, 0.1);
}

}  // namespace
}  // namespace gatehouse::client
