// The commands that load, watch and examine a real server.

#include <gmock/gmock.h>

#include <csignal>
#include <fstream>

#include "tests/integration/running_server.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;

class LoadedServer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder();
    server_ = new RunningServer({"--model", ModelFlag(), "--state-dir", folder_->path()});
  }
  static void TearDownTestSuite() {
    delete server_;
    delete folder_;
  }

  static TemporaryFolder* folder_;
  static RunningServer* server_;
};

TemporaryFolder* LoadedServer::folder_ = nullptr;
RunningServer* LoadedServer::server_ = nullptr;

TEST_F(LoadedServer, BenchCountsWhatTheServerCounts) {
  const double requests = server_->Metric("gatehouse_requests_total", {"code=\"OK\""});
  const double linear = server_->Metric("gatehouse_mlp_tokens_total", {"path=\"linear\""});
  const auto json = server_->Json({"bench", "-m", kModel, "--limit", "12", "-c", "4", "--warmup", "0",
                                   "--prompt-tokens", "8-24", "-n", "6", "--gating", "gated", "--threshold", "0.4"});
  const auto& bench = json["bench"];
  EXPECT_EQ(bench["requests"]["succeeded"], 12);
  EXPECT_EQ(bench["generated_tokens"], 72);
  EXPECT_EQ(server_->Metric("gatehouse_requests_total", {"code=\"OK\""}) - requests, 12);
  double counted = 0;
  for (const auto& layer : bench["routing"]["layers"]) counted += layer["linear_tokens"].get<double>();
  EXPECT_GT(counted, 0);
  EXPECT_EQ(server_->Metric("gatehouse_mlp_tokens_total", {"path=\"linear\""}) - linear, counted);
  EXPECT_GT(bench["latency"]["first_token"]["p50"], 0);
}

TEST_F(LoadedServer, BenchHoldsManyStreamsAndReplaysATrace) {
  const auto many =
      server_->Json({"bench", "-m", kModel, "--limit", "256", "-c", "256", "--prompt-tokens", "2", "-n", "2"});
  const auto& requests = many["bench"]["requests"];
  // Those that the server has no room for are errors that say so.
  EXPECT_EQ(requests["succeeded"].get<int>() + requests["failed"].get<int>(), 256);
  for (const auto& error : many["bench"]["errors"]) EXPECT_EQ(error["reason"], "QUEUE_FULL");
  const auto trace = folder_->path() / "trace.csv";
  std::ofstream(trace) << "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,4\n"
                          "2023-11-16 18:15:50.99,396,9\n2023-11-16 18:15:51.22,87900,5\n";
  const auto replayed = server_->Json({"bench", "-m", kModel, "--trace", trace, "--speed", "50"});
  EXPECT_EQ(replayed["bench"]["requests"]["succeeded"], 3);
  EXPECT_EQ(replayed["bench"]["generated_tokens"], 18);
  EXPECT_THAT(replayed["notes"].dump(), HasSubstr("had to be cut"));
}

TEST_F(LoadedServer, BenchIsInterruptedInGoodOrder) {
  auto client =
      server_->Start({"bench", "-m", kModel, "--duration", "600", "-c", "2", "-n", "200", "--warmup", "0", "--json"});
  ASSERT_TRUE(server_->WaitForMetric("gatehouse_requests_running", 2));
  client->Signal(SIGINT);
  const auto json = nlohmann::json::parse(client->ReadRest());
  EXPECT_EQ(client->Wait(), 130);
  EXPECT_EQ(json["bench"]["interrupted"], true);
  EXPECT_EQ(json["bench"]["requests"]["unfinished"], 2);
  EXPECT_TRUE(server_->WaitForMetric("gatehouse_requests_running", 0));
}

TEST_F(LoadedServer, TopSeesTheLoad) {
  auto load = server_->Start({"bench", "-m", kModel, "--duration", "600", "-c", "2", "--gating", "linear", "--json"});
  ASSERT_TRUE(server_->WaitForMetric("gatehouse_requests_running", 2));
  const auto json = server_->Json({"top", "--metrics", server_->metrics(), "--once", "--interval", "0.5"});
  load->Signal(SIGINT);
  load->ReadRest();
  load->Wait();
  ASSERT_EQ(json["models"].size(), 1u);
  const auto& model = json["models"][0];
  EXPECT_EQ(model["model"], kModel);
  EXPECT_GT(model["prompt_tokens_per_second"], 0);
  EXPECT_GT(model["generated_tokens_per_second"], 0);
  EXPECT_GT(model["linear_fraction"], 0.5);
  EXPECT_EQ(model["layers"].size(), model["layers"].back()["layer"].get<size_t>() + 1);
}

TEST_F(LoadedServer, DoctorFindsNothingWrong) {
  const auto json = server_->Json({"doctor", "--metrics", server_->metrics()});
  EXPECT_EQ(json["ok"], true);
  for (const auto& check : json["checks"]) EXPECT_NE(check["status"], "fail") << check;
  std::vector<std::string> names;
  for (const auto& check : json["checks"]) names.push_back(check["check"]);
  for (const std::string name :
       {"server", "grpc", "health readiness", "calibration novella-neox-4m", "kernels novella-neox-4m", "state",
        "metrics", "version", "engine", "memory", "clock"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
  // The metrics port where gRPC should be.
  const Finished wrong = RunToEnd({Program("gatehouse"), "--server", server_->metrics(), "doctor"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.out, HasSubstr("is the metrics page of a gatehouse-server"));
}

TEST_F(LoadedServer, ShellsAreToldTheNamesOfItsModels) {
  EXPECT_EQ(server_->Run({"completion", "--models"}).out, std::string(kModel) + "\n");
}

}  // namespace
}  // namespace gatehouse::testing
