#include <gmock/gmock.h>

#include <string>

#include "client/cli/doctor_checks.h"
#include "tests/client/cli_answers.h"
#include "tests/client/fake_http.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::FakeHttp;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Level = Finding::Level;

std::string MetricsOf(const std::string& version) {
  return FakeHttp::Page("gatehouse_build_info{version=\"" + version +
                        "\"} 1\ngatehouse_heartbeat_age_seconds 0.1\nprocess_resident_memory_bytes 1048576\n");
}

// The check of that name.
nlohmann::json CheckOf(const nlohmann::json& json, const std::string& name) {
  for (const auto& check : json["checks"]) {
    if (check["check"] == name) return check;
  }
  ADD_FAILURE() << "no check " << name << " in " << json;
  return {};
}

FakeHandlers Healthy() {
  FakeHandlers handlers = Handlers();
  handlers.list_operations = [](const auto&, v1::ListOperationsResponse& response) {
    response.add_operations()->set_state(v1::OPERATION_STATE_SUCCEEDED);
    return FakeStatus{};
  };
  return handlers;
}

TEST(Doctor, LooksAtEverythingAndEndsWellWhereOnlyWarningsAreLeft) {
  FakeServer server(Healthy());
  FakeHttp metrics([] { return MetricsOf("9.9.9"); });
  const Finished run = Gatehouse({"doctor", "--server", server.address(), "--metrics", metrics.address(), "--json"});
  const auto json = run.json();
  EXPECT_EQ(run.exit_code, 0) << json;
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(CheckOf(json, "server")["status"], "ok");
  EXPECT_EQ(CheckOf(json, "grpc")["detail"], "answers as replica r1, with 1 models");
  EXPECT_EQ(CheckOf(json, "calibration m")["detail"], "cal, 1 of 2 layers gateable");
  EXPECT_EQ(CheckOf(json, "state")["detail"], "1 operations kept, 0 waiting or running");
  EXPECT_EQ(CheckOf(json, "metrics")["status"], "ok");
  EXPECT_EQ(CheckOf(json, "engine")["status"], "ok");
  EXPECT_EQ(CheckOf(json, "version")["status"], "warn");
  EXPECT_THAT(CheckOf(json, "version")["detail"].get<std::string>(), HasSubstr("server 9.9.9"));
  // The fake server has no health service.
  EXPECT_EQ(CheckOf(json, "health readiness")["status"], "warn");
  EXPECT_EQ(CheckOf(json, "clock")["status"], "ok");
  const Finished text = Gatehouse({"doctor", "--server", server.address(), "--metrics", metrics.address()});
  EXPECT_THAT(text.out, AllOf(HasSubstr("ok    server"), HasSubstr("warn  version"), HasSubstr("→ ")));
}

TEST(Doctor, FailsWhereNothingListensAndSaysHowToStartAServer) {
  std::string gone;
  { gone = FakeServer(Handlers()).address(); }
  const Finished run = Gatehouse({"doctor", "--server", gone, "--metrics", gone, "--json"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  const auto check = CheckOf(run.json(), "server");
  EXPECT_EQ(check["status"], "fail");
  EXPECT_THAT(check["detail"].get<std::string>(), HasSubstr("Connection refused"));
  EXPECT_THAT(check["advice"].get<std::string>(), HasSubstr("gatehouse-server --listen " + gone));
  EXPECT_EQ(CheckOf(run.json(), "metrics")["status"], "warn");
}

TEST(Doctor, KnowsAMetricsPageWhereGrpcShouldBe) {
  FakeHttp metrics([] { return MetricsOf("0.1.0"); });
  const auto json =
      Gatehouse({"doctor", "--server", metrics.address(), "--metrics", metrics.address(), "--json"}).json();
  EXPECT_THAT(CheckOf(json, "grpc")["detail"].get<std::string>(),
              HasSubstr("is the metrics page of a gatehouse-server"));
}

TEST(Judgement, TellsWhatAnswersInsteadOfGrpc) {
  const absl::Status unavailable = absl::UnavailableError("failed to connect");
  const auto judge = [&](const std::string& reply) { return JudgeGrpcFailure(unavailable, "h:1", reply).detail; };
  EXPECT_THAT(judge("HTTP/1.1 404 Not Found\r\n\r\n"), HasSubstr("a web server, not gRPC"));
  EXPECT_THAT(judge("HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server."),
              HasSubstr("TLS"));
  EXPECT_THAT(judge("\x15\x03\x01"), HasSubstr("TLS"));
  EXPECT_THAT(judge(""), HasSubstr("UNAVAILABLE"));
  EXPECT_THAT(JudgeGrpcFailure(absl::UnimplementedError(""), "h:1", "").detail, HasSubstr("knows no"));
  EXPECT_THAT(JudgeGrpcFailure(absl::DeadlineExceededError(""), "h:1", "").detail, HasSubstr("does not answer gRPC"));
  EXPECT_THAT(JudgeConnection(absl::DeadlineExceededError(""), "h:1").detail, HasSubstr("firewall"));
  EXPECT_THAT(JudgeConnection(absl::NotFoundError("cannot resolve h"), "h:1").advice, HasSubstr("--server"));
}

TEST(Judgement, SeesWhatAModelLacks) {
  v1::DescribeModelResponse model = Description();
  EXPECT_EQ(JudgeCalibration(model).level, Level::kOk);
  model.mutable_calibration()->mutable_layers(0)->set_gateable(false);
  EXPECT_EQ(JudgeCalibration(model).level, Level::kWarn);
  model.clear_calibration();
  EXPECT_EQ(JudgeCalibration(model).advice, "gatehouse calibrate --model m --corpus FILE");

  Machine machine;
  EXPECT_EQ(JudgeKernels(model, machine).level, Level::kOk);
  machine.cpu_flags = {"avx2", "fma"};
  EXPECT_EQ(JudgeKernels(model, machine).level, Level::kWarn);
  model.set_kernels("avx2");
  EXPECT_EQ(JudgeKernels(model, machine).level, Level::kOk);
  machine.cpu_flags.insert({"avx512f", "avx512bw", "avx512dq", "avx512vl"});
  EXPECT_THAT(JudgeKernels(model, machine).advice, HasSubstr("--kernels auto"));
  model.set_device("cuda");
  EXPECT_EQ(JudgeKernels(model, machine).level, Level::kOk);
}

TEST(Judgement, SeesAHungEngineAndMemoryThatWillNotDo) {
  EXPECT_EQ(JudgeHeartbeat(0.1).level, Level::kOk);
  EXPECT_EQ(JudgeHeartbeat(20).level, Level::kWarn);
  EXPECT_EQ(JudgeHeartbeat(61).level, Level::kFail);
  client::ServerMetrics metrics;
  metrics.resident_bytes = 1e9;
  metrics.models["m"].kv_capacity = 100;
  metrics.models["m"].kv_used = 50;
  metrics.models["m"].kv_page_bytes = 1e8;
  Machine machine;
  machine.memory_bytes = 7e9;
  EXPECT_EQ(JudgeMemory(metrics, machine).level, Level::kOk);
  machine.memory_bytes = 5e9;
  EXPECT_THAT(JudgeMemory(metrics, machine).advice, HasSubstr("--kv-memory-mb"));
  EXPECT_EQ(JudgeHealth("m", false).level, Level::kFail);
  EXPECT_EQ(JudgeHealth("m", true).level, Level::kOk);
  EXPECT_EQ(JudgeHealth("m", absl::NotFoundError("m")).level, Level::kFail);
}

TEST(Judgement, ComparesClocksAndKnowsANarrowTerminal) {
  const absl::Time now = absl::FromCivil(absl::CivilDay(2026, 11, 30), absl::UTCTimeZone());
  EXPECT_EQ(JudgeClock(now, absl::InfinitePast()).level, Level::kOk);
  EXPECT_EQ(JudgeClock(now, now + absl::Seconds(30)).level, Level::kOk);
  EXPECT_EQ(JudgeClock(now, now + absl::Hours(2)).level, Level::kWarn);
  EXPECT_EQ(JudgeClock(absl::UnixEpoch(), absl::InfinitePast()).level, Level::kWarn);
  std::ostringstream out;
  Terminal terminal{.out = out, .err = out};
  EXPECT_EQ(JudgeTerminal(terminal, false).level, Level::kOk);
  terminal.out_is_terminal = true;
  EXPECT_EQ(JudgeTerminal(terminal, true).level, Level::kOk);
  EXPECT_THAT(JudgeTerminal(terminal, false).advice, HasSubstr("UTF-8"));
  terminal.width = 40;
  EXPECT_THAT(JudgeTerminal(terminal, true).advice, HasSubstr("60 columns"));
}

}  // namespace
}  // namespace gatehouse::cli
