#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "tests/client/cli_answers.h"
#include "tests/client/fake_operation.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::HasSubstr;

TEST(Operations, ANameThatNoHeaderCanCarryIsAskedForAllTheSame) {
  FakeHandlers handlers = Handlers();
  handlers.get_operation = [](const auto&, auto&) { return FakeStatus{5, "there is none", "OPERATION_NOT_FOUND"}; };
  FakeServer server(handlers);
  for (const char* replica : {"\xC3\xBC", "a\nb", "a\x7F"}) {
    const Finished run =
        Gatehouse({"operations", "get", std::string("operations/") + replica + "/1", "--server", server.address()});
    EXPECT_EQ(run.exit_code, kExitFailed) << run.err;
    EXPECT_THAT(run.err, HasSubstr("there is none"));
  }
}

TEST(Operations, AreWatchedOnWhereAProxyCutsTheAnswerOfAReplicaThatDied) {
  FakeOperation operation;
  FakeHandlers handlers = operation.Handlers(Handlers());
  std::atomic<int> asked = 0;
  handlers.watch_operation = [&, answer = handlers.watch_operation](const auto& request, const auto& stream) {
    if (++asked == 1) return FakeStatus{13, "Received RST_STREAM with error code 2"};
    return answer(request, stream);
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"operations", "watch", "operations/r1/7", "--server", server.address()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(asked, 2);
}

TEST(Calibrate, UploadsStartsWatchesAndShowsTheLayers) {
  FakeOperation operation;
  FakeServer server(operation.Handlers(Handlers()));
  const auto corpus = TemporaryFile("novel.txt");
  std::ofstream(corpus) << "Call me Ishmael.";
  const Finished run = Gatehouse({"calibrate", "--model", "m", "--corpus", corpus.string(), "--json", "--name",
                                  "careful", "--no-activate", "--fit-tokens", "100", "--ridge", "0.5",
                                  "--sink-positions", "0", "--server", server.address()});
  std::filesystem::remove(corpus);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = run.json();
  EXPECT_EQ(json["corpus"], nlohmann::json::parse(R"({"name": "corpora/abc", "size_bytes": 16})"));
  EXPECT_EQ(json["operation"]["state"], "succeeded");
  EXPECT_EQ(json["operation"]["error"], nullptr);
  EXPECT_EQ(json["layers"][1]["consensus"], nlohmann::json::parse("[12, 7]"));
  const auto& spec = operation.started.calibrate();
  EXPECT_EQ(spec.corpus(), "corpora/abc");
  EXPECT_EQ(spec.calibration(), "careful");
  EXPECT_TRUE(spec.has_activate() && !spec.activate());
  EXPECT_EQ(spec.fit_tokens(), 100u);
  EXPECT_EQ(spec.ridge(), 0.5);
  EXPECT_TRUE(spec.has_sink_positions());
  EXPECT_EQ(run.err, " 50%  surrogates: layer 1 of 2\n");
}

TEST(Calibrate, ShowsTheOperatingPointsItMade) {
  FakeOperation operation;
  FakeHandlers handlers = operation.Handlers(Handlers());
  handlers.describe_model = [](const auto&, v1::DescribeModelResponse& response) {
    response = WithOperatingPoints();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const auto calibrate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"calibrate", "-m", "m", "--corpus", "-", "--server", server.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Gatehouse(arguments, {.in = "Call me Ishmael."});
  };
  EXPECT_THAT(calibrate({}).out, HasSubstr("\n\n  operating points · sequential · ladders\n  name  perplexity"));
  EXPECT_EQ(calibrate({"--json"}).json()["operating_points"][0]["name"], "1%");
}

TEST(Calibrate, FailsWhereTheOperationDoes) {
  FakeOperation operation;
  operation.end = v1::OPERATION_STATE_FAILED;
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run =
      Gatehouse({"calibrate", "-m", "m", "--corpus", "-", "--server", server.address()}, {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_THAT(run.err, HasSubstr("calibration of m failed: the corpus is too short"));
}

TEST(Calibrate, DetachesWithoutWatching) {
  FakeOperation operation;
  operation.runs_until_cancelled = true;
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run =
      Gatehouse({"calibrate", "-m", "m", "--corpus", "-", "--detach", "--server", server.address()}, {.in = "text"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "operations/r1/7\n");
}

TEST(Calibrate, AsksTheServerToCancelWhenInterrupted) {
  FakeOperation operation;
  operation.runs_until_cancelled = true;
  Interrupts interrupts;
  std::once_flag once;
  std::thread ctrl_c;
  operation.running = [&] { std::call_once(once, [&] { ctrl_c = std::thread([&] { interrupts.Raise(); }); }); };
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run = Gatehouse({"calibrate", "-m", "m", "--corpus", "-", "--json", "--server", server.address()},
                                 {.in = "text", .interrupts = &interrupts});
  ctrl_c.join();
  EXPECT_EQ(run.exit_code, kExitInterrupted);
  EXPECT_TRUE(operation.cancelled);
  EXPECT_EQ(run.json()["operation"]["state"], "cancelled");
}

TEST(Calibrate, SaysWhichFileItCannotRead) {
  FakeOperation operation;
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run = Gatehouse({"calibrate", "-m", "m", "--corpus", "/no/such/file", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.err, "gatehouse: cannot read /no/such/file: No such file or directory\n");
}

TEST(Operations, ListsGetsAndFetchesByNameOrId) {
  FakeOperation operation;
  FakeServer server(operation.Handlers(Handlers()));
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--server", server.address(), "operations"});
    return Gatehouse(arguments);
  };
  EXPECT_EQ(run({"--json"}).json()["operations"][0]["name"], "operations/r1/7");
  EXPECT_EQ(run({"list", "--json"}).json()["operations"].size(), 1u);
  EXPECT_EQ(run({"get", "7", "--json"}).json()["state"], "succeeded");
  EXPECT_THAT(run({"get", "operations/r1/7"}).out, HasSubstr("operations/r1/7  calibrate  m      succeeded  100%"));
  EXPECT_THAT(run({"get", "8"}).err, HasSubstr("no operation has the ID 8"));
  EXPECT_EQ(run({"watch", "7"}).exit_code, 0);
  EXPECT_EQ(run({"cancel", "7", "--json"}).exit_code, 0);
  EXPECT_TRUE(operation.cancelled);
  EXPECT_EQ(run({"fetch", "7", "--output", "-"}).out, "tensors");
  const auto path = TemporaryFile("result.safetensors");
  EXPECT_EQ(run({"fetch", "7", "-o", path.string(), "--json"}).json()["size_bytes"], 7);
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "tensors");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace gatehouse::cli
