// Many clients at once, clients that leave, and a server that ends.

#include <gmock/gmock.h>

#include <csignal>

#include "tests/integration/running_server.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;

class Streams : public ::testing::Test {
 protected:
  RunningServer Server(std::vector<std::string> more = {}) const {
    std::vector<std::string> flags = {"--model", ModelFlag(), "--state-dir", folder_.path()};
    flags.insert(flags.end(), more.begin(), more.end());
    return RunningServer(flags);
  }
  TemporaryFolder folder_;
};

// A generation that goes on for long.
const std::vector<std::string> kLong = {"generate", "-m",           kModel, "--prompt",
                                        "It was",   "--max-tokens", "500",  "--ignore-eos"};

TEST_F(Streams, EightAtOnceEachEqualItsSoloRun) {
  const RunningServer server = Server();
  const auto arguments = [](int stream) {
    const std::string prompt =
        "Chapter " + std::to_string(stream) + ". " + std::string(static_cast<size_t>(stream) * 7, 'a');
    return std::vector<std::string>{"generate",
                                    "-m",
                                    kModel,
                                    "--prompt",
                                    prompt,
                                    "--max-tokens",
                                    "48",
                                    "--ignore-eos",
                                    "--temperature",
                                    stream % 2 == 0 ? "0" : "0.8",
                                    "--seed",
                                    std::to_string(stream),
                                    "--json"};
  };
  std::vector<nlohmann::json> solo;
  for (int stream = 0; stream < 8; ++stream) solo.push_back(server.Json(arguments(stream)));
  std::vector<std::unique_ptr<Process>> clients;
  for (int stream = 0; stream < 8; ++stream) clients.push_back(server.Start(arguments(stream)));
  for (size_t stream = 0; stream < 8; ++stream) {
    const auto together = nlohmann::json::parse(clients[stream]->ReadRest());
    EXPECT_EQ(clients[stream]->Wait(), 0);
    EXPECT_EQ(together["text"], solo[stream]["text"]) << stream;
    ASSERT_EQ(together["tokens"].size(), 48u);
    for (size_t i = 0; i < 48; ++i) EXPECT_EQ(together["tokens"][i]["id"], solo[stream]["tokens"][i]["id"]);
  }
}

TEST_F(Streams, AKilledClientFreesItsRow) {
  const RunningServer server = Server();
  auto client = server.Start(kLong);
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_running", 1));
  client->Signal(SIGKILL);
  client->Wait();
  EXPECT_TRUE(server.WaitForMetric("gatehouse_requests_running", 0));
  EXPECT_TRUE(server.WaitForMetric("gatehouse_kv_pages_used", 0));
  EXPECT_EQ(server.Metric("gatehouse_requests_total", {"code=\"CANCELLED\""}), 1);
  EXPECT_LT(server.Metric("gatehouse_generated_tokens_total"), 500);
}

TEST_F(Streams, CtrlCCancelsTheCallInGoodOrder) {
  const RunningServer server = Server();
  auto client = server.Start(kLong);
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_running", 1));
  client->Signal(SIGINT);
  client->ReadRest();
  EXPECT_EQ(client->Wait(), 130);
  EXPECT_THAT(client->error_output(), HasSubstr("interrupted"));
  EXPECT_TRUE(server.WaitForMetric("gatehouse_requests_running", 0));
}

TEST_F(Streams, CancellingInAPrefillFreesTheRow) {
  // One position a step: a prompt of 500 tokens takes 500 steps.
  const RunningServer server = Server({"--prefill-chunk", "1"});
  std::string ids = "5";
  for (int i = 1; i < 500; ++i) ids += ",5";
  auto client = server.Start({"generate", "-m", kModel, "--prompt-token-ids", ids, "--max-tokens", "2"});
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_running", 1));
  client->Signal(SIGKILL);
  client->Wait();
  EXPECT_TRUE(server.WaitForMetric("gatehouse_requests_running", 0));
  EXPECT_TRUE(server.WaitForMetric("gatehouse_kv_pages_used", 0));
  // It never came to a token.
  EXPECT_EQ(server.Metric("gatehouse_generated_tokens_total"), 0);
  EXPECT_LT(server.Metric("gatehouse_mlp_tokens_total", {"layer=\"0\""}), 500);
}

TEST_F(Streams, AFullQueueRefusesAtOnce) {
  const RunningServer server = Server({"--max-running", "1", "--max-waiting", "1"});
  auto running = server.Start(kLong);
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_running", 1));
  auto waiting = server.Start(kLong);
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_waiting", 1));
  const auto error = server.Error(kLong);
  EXPECT_EQ(error["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error["reason"], "QUEUE_FULL");
  // One that leaves the queue never starts.
  waiting->Signal(SIGKILL);
  waiting->Wait();
  EXPECT_TRUE(server.WaitForMetric("gatehouse_requests_waiting", 0));
}

TEST_F(Streams, SigtermLetsRunningCallsFinishAndRefusesNewOnes) {
  RunningServer server = Server({"--shutdown-grace", "60"});
  auto client = server.Start(kLong);
  // The first text has come.
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_running", 1));
  server.process().Signal(SIGTERM);
  const std::string text = client->ReadRest();
  EXPECT_EQ(client->Wait(), 0) << client->error_output();
  EXPECT_THAT(client->error_output(), HasSubstr("500 tokens"));
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_EQ(server.Run({"models"}).exit_code, 3);
}

TEST_F(Streams, TheGraceOfAShutdownHasAnEnd) {
  RunningServer server = Server({"--shutdown-grace", "0"});
  auto client = server.Start(kLong);
  ASSERT_TRUE(server.WaitForMetric("gatehouse_requests_running", 1));
  server.process().Signal(SIGTERM);
  client->ReadRest();
  EXPECT_NE(client->Wait(), 0);
  EXPECT_EQ(server.process().Wait(), 0);
}

}  // namespace
}  // namespace gatehouse::testing
