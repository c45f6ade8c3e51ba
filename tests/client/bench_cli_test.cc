#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "tests/client/cli_answers.h"
#include "tests/client/fake_operation.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A server that generates what is asked for, and keeps the requests.
struct Loaded {
  std::mutex mutex;
  std::vector<v1::GenerateRequest> requests;

  FakeHandlers Handlers() {
    FakeHandlers handlers = cli::Handlers();
    handlers.generate = [this](const v1::GenerateRequest& request, const auto& stream) {
      {
        const std::lock_guard lock(mutex);
        requests.push_back(request);
      }
      v1::GenerateResponse response;
      response.mutable_start();
      stream.write(response);
      response.mutable_token();
      for (uint32_t i = 0; i < request.max_tokens(); ++i) stream.write(response);
      auto& routing = *response.mutable_summary()->mutable_routing();
      routing.set_decisions(4);
      auto& layer = *routing.add_layers();
      layer.set_linear_tokens(1);
      layer.set_full_tokens(3);
      stream.write(response);
      return FakeStatus{};
    };
    return handlers;
  }
};

std::vector<std::string> Bench(const FakeServer& server, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"bench", "-m", "m", "--server", server.address()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Bench, SendsRequestsOfTheLengthsAndTheGatingAskedFor) {
  Loaded loaded;
  FakeServer server(loaded.Handlers());
  const Finished run = Gatehouse(Bench(server, {"--limit", "6", "--warmup", "0", "--prompt-tokens", "5-9", "-n", "3",
                                                "--gating", "gated", "-t", "0.25"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_THAT(loaded.requests, SizeIs(6));
  for (const auto& request : loaded.requests) {
    EXPECT_EQ(request.model(), "m");
    EXPECT_GE(request.prompt().token_ids().ids_size(), 5);
    EXPECT_LE(request.prompt().token_ids().ids_size(), 9);
    for (const int32_t id : request.prompt().token_ids().ids()) EXPECT_TRUE(id > 0 && id < 500) << id;  // 0 ends a text
    EXPECT_EQ(request.max_tokens(), 3u);
    EXPECT_TRUE(request.stop().ignore_eos());
    EXPECT_EQ(request.gating().mode(), v1::GatingPolicy::MODE_GATED);
    EXPECT_EQ(request.gating().threshold(), 0.25f);
  }
  EXPECT_THAT(run.out, AllOf(HasSubstr("Load on m\n"), HasSubstr("a closed loop of 8"), HasSubstr("goodput"),
                             HasSubstr("first token"), HasSubstr("linear by layer\n  L0  "), HasSubstr(" 25.0%")));
  EXPECT_THAT(run.out, Not(HasSubstr("sent late by")));
}

TEST(Bench, PrintsTheDocumentedJsonAndThePageOfTheSameReport) {
  Loaded loaded;
  FakeServer server(loaded.Handlers());
  const auto page = TemporaryFile("load.html");
  const Finished run = Gatehouse(Bench(server, {"--limit", "5", "--warmup", "2", "-c", "2", "-n", "4", "--json",
                                                "--html", page.string(), "--slo-ttft", "100", "--slo-tpot", "100"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(loaded.requests, SizeIs(7));  // those of the warm-up too
  const auto json = run.json();
  EXPECT_EQ(json["kind"], "bench");
  const auto& bench = json["bench"];
  EXPECT_EQ(bench["requests"],
            nlohmann::json::parse(R"({"sent": 5, "succeeded": 5, "good": 5, "failed": 0, "unfinished": 0})"));
  EXPECT_EQ(bench["generated_tokens"], 20);
  EXPECT_EQ(bench["prompt_tokens"], 5 * 124);  // 128 and 4 do not fit a context of 128
  EXPECT_EQ(bench["latency"]["inter_token"]["count"], 15);
  EXPECT_EQ(bench["latency"]["time_per_token"]["count"], 5);
  EXPECT_THAT(json["settings"].dump(), HasSubstr("slo_tpot"));
  EXPECT_GE(bench["latency"]["end_to_end"]["max"], bench["latency"]["first_token"]["p50"]);
  EXPECT_GT(bench["goodput_rps"], 0);
  EXPECT_EQ(bench["routing"]["linear_fraction"], 0.25);
  EXPECT_EQ(bench["routing"]["layers"][0]["full_tokens"], 15);
  EXPECT_EQ(bench["errors"], nlohmann::json::array());
  EXPECT_EQ(bench["interrupted"], false);
  EXPECT_THAT(json["notes"].dump(), HasSubstr("5 requests had to be cut to fit"));
  std::ifstream file(page);
  const std::string html((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_NE(html.find("Load on m"), std::string::npos);
  std::filesystem::remove(page);
}

TEST(Bench, AnObjectiveNobodyKeepsLeavesNoGoodput) {
  Loaded loaded;
  FakeServer server(loaded.Handlers());
  const auto json = Gatehouse(Bench(server, {"--limit", "3", "--json", "--slo-e2e", "0.0000001"})).json();
  EXPECT_EQ(json["bench"]["requests"]["good"], 0);
  EXPECT_EQ(json["bench"]["goodput_rps"], 0);
  EXPECT_EQ(json["bench"]["requests"]["succeeded"], 3);
  // Its other name.
  const auto other = Gatehouse(Bench(server, {"--limit", "3", "--json", "--slo-itl", "0.0000001"})).json();
  EXPECT_EQ(other["bench"]["requests"]["good"], 0);
}

TEST(Bench, ReplaysATraceAndSaysHowLateItWas) {
  Loaded loaded;
  FakeServer server(loaded.Handlers());
  const std::string trace =
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.0,10,2\n2023-11-16 18:15:56.0,20,3\n2023-11-16 18:16:56.0,30,4\n";
  const Finished run = Gatehouse(
      Bench(server, {"--trace", "-", "--speed", "100", "--limit", "2", "--warmup", "0", "--json"}), {.in = trace});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_THAT(loaded.requests, SizeIs(2));
  EXPECT_EQ(loaded.requests[0].prompt().token_ids().ids_size(), 10);
  EXPECT_EQ(loaded.requests[1].max_tokens(), 3u);
  const auto json = run.json();
  EXPECT_GE(json["bench"]["seconds"], 0.1);
  EXPECT_EQ(json["bench"]["latency"]["lateness"]["count"], 2);
  EXPECT_THAT(json["notes"].dump(), HasSubstr("ms late"));
}

TEST(Bench, CutsPromptsFromATextsTokens) {
  Loaded loaded;
  FakeHandlers handlers = loaded.Handlers();
  std::string scored;
  handlers.score = [&](const v1::ScoreRequest& request, const auto& stream) {
    scored = request.input().text();
    v1::ScoreResponse response;
    for (int32_t id : {11, 12, 13}) response.mutable_tokens()->add_tokens()->set_id(id);
    stream.write(response);
    response.mutable_summary()->set_tokens(3);
    stream.write(response);
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const auto text = TemporaryFile("prompts.txt");
  std::ofstream(text) << std::string(20'000, 'x') << "ü" << std::string(20'000, 'y');
  const Finished run =
      Gatehouse(Bench(server, {"--prompts", text.string(), "--limit", "2", "--prompt-tokens", "8", "--warmup", "0"}));
  std::filesystem::remove(text);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(scored.size(), 32u << 10);
  for (const auto& request : loaded.requests) {
    EXPECT_EQ(request.prompt().token_ids().ids_size(), 8);
    for (const int32_t id : request.prompt().token_ids().ids()) EXPECT_TRUE(id >= 11 && id <= 13);
  }
}

TEST(Bench, CountsErrorsByCodeAndFailsWhereNothingSucceeds) {
  FakeHandlers handlers = Handlers();
  handlers.generate = [](const auto&, const auto&) { return FakeStatus{8, "the queue is full", "QUEUE_FULL"}; };
  FakeServer server(handlers);
  const Finished json = Gatehouse(Bench(server, {"--limit", "4", "--warmup", "0", "--json"}));
  EXPECT_EQ(json.exit_code, kExitFailed);
  EXPECT_EQ(json.json()["bench"]["errors"], nlohmann::json::parse(
                                                R"([{"code": "RESOURCE_EXHAUSTED", "reason": "QUEUE_FULL", "count": 4,
                                                     "message": "the queue is full"}])"));
  EXPECT_EQ(json.json()["bench"]["latency"]["first_token"]["p50"], nullptr);
  EXPECT_THAT(Gatehouse(Bench(server, {"--limit", "4", "--warmup", "0"})).out,
              HasSubstr("     4  RESOURCE_EXHAUSTED  QUEUE_FULL  the queue is full\n"));
  // A warm-up that fails tells it at once.
  const Finished warm = Gatehouse(Bench(server, {"--limit", "4"}));
  EXPECT_EQ(warm.exit_code, kExitFailed);
  EXPECT_THAT(warm.err,
              HasSubstr("the queue is full: try again later, or start the server with a larger --max-waiting"));
}

TEST(Bench, ReportsWhatItHasWhenInterrupted) {
  Interrupts interrupts;
  std::thread ctrl_c;
  std::atomic<int> arrived = 0;
  Loaded loaded;
  FakeHandlers handlers = loaded.Handlers();
  handlers.generate = [&, answer = handlers.generate](const auto& request, const auto& stream) {
    if (++arrived <= 2) return answer(request, stream);
    if (arrived == 3) ctrl_c = std::thread([&] { interrupts.Raise(); });
    while (!stream.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse(Bench(server, {"-c", "1", "--duration", "600", "--warmup", "0", "--json"}),
                                 {.interrupts = &interrupts});
  ctrl_c.join();
  EXPECT_EQ(run.exit_code, kExitInterrupted);
  const auto bench = run.json()["bench"];
  EXPECT_EQ(bench["interrupted"], true);
  EXPECT_EQ(bench["requests"]["succeeded"], 2);
  EXPECT_EQ(bench["requests"]["unfinished"], 1);
  EXPECT_EQ(bench["errors"], nlohmann::json::array());
}

TEST(Bench, RefusesFlagsThatDoNotGoTogetherOrAreOutOfBounds) {
  const auto refused = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", "-m", "m"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = Gatehouse(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage) << run.out << run.err;
    return run.err;
  };
  EXPECT_THAT(refused({"-c", "2", "--rate", "1"}), AllOf(HasSubstr("--rate"), HasSubstr("--concurrency")));
  EXPECT_THAT(refused({"--speed", "2"}), HasSubstr("--trace"));
  EXPECT_THAT(refused({"--rate", "0"}), HasSubstr("'0' must be above 0"));
  EXPECT_THAT(refused({"-c", "0"}), HasSubstr("'0' is not a whole number in [1, 4096]"));
  EXPECT_THAT(refused({"--prompt-tokens", "9-5"}), HasSubstr("--prompt-tokens: '9-5' is not a range"));
  EXPECT_THAT(refused({"--prompt-tokens", "0"}), HasSubstr("in [1, 16777216]"));
  EXPECT_THAT(refused({"--trace", "/no/such/file"}), HasSubstr("/no/such/file"));
  EXPECT_THAT(refused({"--slo-ttft", "-1"}), HasSubstr("--slo-ttft"));
}

}  // namespace
}  // namespace gatehouse::cli
