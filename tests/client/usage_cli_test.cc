#include <gmock/gmock.h>

#include <cstdlib>
#include <thread>

#include "absl/strings/cord.h"
#include "gatehouse/v1/errors.pb.h"
#include "tests/client/cli_answers.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Errors, SayWhatToDo) {
  FakeHandlers handlers = Handlers();
  handlers.generate = [](const auto&, const auto&) {
    return FakeStatus{9, "model m is not calibrated", "NOT_CALIBRATED"};
  };
  handlers.score = [](const auto&, const auto&) { return FakeStatus{3, "text is\nempty\x1b[2J", "EMPTY_INPUT"}; };
  FakeServer server(handlers);
  Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "x", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.err, "gatehouse: model m is not calibrated: run `gatehouse calibrate --model m --corpus FILE` first\n");
  run = Gatehouse({"generate", "-m", "m", "--prompt", "x", "--json", "--server", server.address()});
  EXPECT_EQ(run.json(), nlohmann::json::parse(R"({"error": {"code": "FAILED_PRECONDITION", "reason": "NOT_CALIBRATED",
                                                  "message": "model m is not calibrated"}})"));
  run = Gatehouse({"score", "-m", "m", "--text", "x", "--server", server.address()});
  EXPECT_EQ(run.err, "gatehouse: text is⏎empty\\x1b[2J: give it some text\n");  // one line, and no control characters
}

TEST(Errors, NameTheServerThatDoesNotAnswer) {
  std::string address;
  { address = FakeServer(Handlers()).address(); }
  const Finished run = Gatehouse({"models", "--server", address});
  EXPECT_EQ(run.exit_code, kExitUnavailable);
  EXPECT_EQ(run.err, "gatehouse: no server answers at " + address +
                         " (Connection refused): start one with `gatehouse-server --listen " + address +
                         "`, or name another with --server\n");
}

TEST(Errors, NameAReplicaThatNoHeaderCanCarry) {
  for (const std::string replica : {"r\u00fc", "a\nb"}) {
    const Finished run = Gatehouse({"--replica", replica, "models"});
    EXPECT_EQ(run.exit_code, kExitUsage);
    EXPECT_THAT(run.err, AllOf(HasSubstr("--replica"), HasSubstr("printable ASCII")));
  }
}

TEST(Errors, TellAServerThatEndedTheCallFromOneThatIsNotThere) {
  EXPECT_EQ(DescribeError(absl::UnavailableError("Socket closed"), "h:1", "m"),
            "the server at h:1 ended the call (Socket closed): try again later, or another with --server");
  EXPECT_EQ(DescribeError(absl::UnavailableError("DNS resolution failed for nowhere:1: not found"), "nowhere:1", "m"),
            "no server answers at nowhere:1 (not found): start one with `gatehouse-server --listen nowhere:1`, or name "
            "another with --server");
}

// What the program says of a failure that the server names.
std::string Said(absl::StatusCode code, const std::string& message, const std::string& reason) {
  v1::ErrorInfo info;
  info.set_reason(reason);
  absl::Status status(code, message);
  status.SetPayload("type.googleapis.com/google.rpc.ErrorInfo", absl::Cord(info.SerializeAsString()));
  return DescribeError(status, "h:1", "m");
}

TEST(Errors, NameTheNextStepForEveryReasonThatHasOne) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(Said(code, "gating.threshold is 2, must be in [0, 1]", "INVALID_FIELD"),
            "gating.threshold is 2, must be in [0, 1]: --threshold sets it");
  EXPECT_EQ(Said(code, "threshold is 2, must be in [0, 1]", "INVALID_FIELD"),
            "threshold is 2, must be in [0, 1]: --threshold sets it");
  EXPECT_THAT(Said(code, "gating.layer_thresholds names layer 9", "INVALID_FIELD"),
              HasSubstr("--layer-threshold sets"));
  EXPECT_EQ(Said(code, "gating.quorum_of is 2", "INVALID_FIELD"), "gating.quorum_of is 2");
  EXPECT_THAT(Said(code, "prompt has 600 tokens", "PROMPT_TOO_LONG"), HasSubstr("`gatehouse models m`"));
  EXPECT_THAT(Said(code, "layer 9", "LAYER_OUT_OF_RANGE"), HasSubstr("`gatehouse models m` lists its layers"));
  EXPECT_THAT(Said(absl::StatusCode::kNotFound, "no model x", "MODEL_NOT_FOUND"),
              HasSubstr("`gatehouse models` lists"));
  EXPECT_THAT(Said(absl::StatusCode::kFailedPrecondition, "other weights", "OTHER_MODELS_CALIBRATION"),
              HasSubstr("`gatehouse calibrate --model m --corpus FILE`"));
  EXPECT_THAT(Said(absl::StatusCode::kResourceExhausted, "no room", "KV_MEMORY_FULL"), HasSubstr("--kv-memory-mb"));
  EXPECT_THAT(Said(absl::StatusCode::kResourceExhausted, "full", "DISK_FULL"), HasSubstr("--state-dir"));
  EXPECT_THAT(Said(absl::StatusCode::kUnavailable, "draining", "DRAINING"), HasSubstr("another with --server"));
  EXPECT_THAT(Said(absl::StatusCode::kDeadlineExceeded, "late", "DEADLINE_EXCEEDED"), HasSubstr("--timeout"));
  EXPECT_THAT(Said(absl::StatusCode::kInternal, "NaN", "MODEL_PRODUCED_NAN"), HasSubstr("--dtype float32"));
  EXPECT_THAT(DescribeError(absl::UnimplementedError("unknown"), "h:1", "m"), HasSubstr("`gatehouse doctor`"));
  // What says itself what to do is left alone.
  EXPECT_EQ(Said(code, "use `gatehouse x`", "EMPTY_INPUT"), "use `gatehouse x`");
}

TEST(Errors, TellAnHttpServerFromGrpc) {
  EXPECT_THAT(
      DescribeError(absl::UnavailableError("failed to connect: Trying to connect an http1.x server"), "h:1", "m"),
      AllOf(HasSubstr("h:1 speaks HTTP, not gRPC"), HasSubstr("--listen")));
}

TEST(Errors, TellADeadlineFromOtherFailures) {
  FakeHandlers handlers = Handlers();
  handlers.generate = [](const auto&, const auto& stream) {
    while (!stream.cancelled()) std::this_thread::yield();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x", "--timeout", "0.05", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitDeadline);
  EXPECT_THAT(run.err, HasSubstr("--timeout"));
}

TEST(Errors, InterruptingACallCancelsIt) {
  Interrupts interrupts;
  std::thread ctrl_c;
  FakeHandlers handlers = Handlers();
  handlers.generate = [&](const auto&, const auto& stream) {
    ctrl_c = std::thread([&] { interrupts.Raise(); });
    while (!stream.cancelled()) std::this_thread::yield();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x", "--server", server.address()}, {.interrupts = &interrupts});
  ctrl_c.join();
  EXPECT_EQ(run.exit_code, kExitInterrupted);
  EXPECT_EQ(run.err, "gatehouse: interrupted\n");
}

TEST(Errors, TextThatIsNotUtf8IsNamed) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "ab\xFF", "--json", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.json()["error"]["message"], "prompt.text is not valid UTF-8 at byte 2");
  EXPECT_THAT(run.err, HasSubstr("iconv"));
}

TEST(Usage, BadCommandLinesExitWithTwoAndNameTheFlag) {
  const auto usage = [](std::vector<std::string> arguments) {
    const Finished run = Gatehouse(std::move(arguments));
    EXPECT_EQ(run.exit_code, kExitUsage) << run.out << run.err;
    return run.err;
  };
  EXPECT_EQ(usage({}), "gatehouse: a command is missing; see `gatehouse --help`\n");
  EXPECT_EQ(usage({"--json", "generat"}), "gatehouse: generat is no command of gatehouse; see `gatehouse --help`\n");
  EXPECT_EQ(usage({"experiment"}), "gatehouse: a command is missing; see `gatehouse experiment --help`\n");
  EXPECT_EQ(usage({"experiment", "costs", "-m", "m"}),
            "gatehouse: costs is no command of gatehouse experiment; see `gatehouse experiment --help`\n");
  EXPECT_EQ(usage({"generate", "-m", "m", "--prompt", "x", "--tempature", "0.5"}),
            "gatehouse: not expected: --tempature 0.5; see `gatehouse generate --help`\n");
  EXPECT_EQ(usage({"generate", "--prompt", "x"}), "gatehouse: --model is required; see `gatehouse generate --help`\n");
  EXPECT_THAT(usage({"generate", "-m", "m"}), HasSubstr("--prompt"));
  EXPECT_THAT(usage({"generate", "-m", "m", "--prompt", "x", "--layers", "5-3"}),
              AllOf(HasSubstr("--layers"), HasSubstr("'5-3'")));
  EXPECT_THAT(usage({"generate", "-m", "m", "--prompt", "x", "--gating", "half"}), HasSubstr("--gating"));
  EXPECT_THAT(usage({"models", "--server", "host:99999"}), HasSubstr("port 99999, must be in [1, 65535]"));
  EXPECT_THAT(usage({"generate", "-m", "m", "--prompt", "x", "--prompt", "y"}), HasSubstr("--prompt"));
  EXPECT_THAT(usage({"score", "-m", "m", "--file", "/no/such/file"}), HasSubstr("/no/such/file"));
  EXPECT_THAT(usage({"score", "-m", "m", "--file", "/"}), HasSubstr("cannot read /"));
  EXPECT_THAT(usage({"models", "--timeout", "-1"}), HasSubstr("--timeout"));
  EXPECT_THAT(usage({"models", "--timeout", "nan"}), HasSubstr("--timeout"));
  EXPECT_THAT(usage({"models", "--no-such-flag"}), HasSubstr("--no-such-flag"));
}

TEST(Usage, ABadCommandLineIsJsonToo) {
  const std::vector<std::vector<std::string>> commands = {{"--json", "generat"}, {"generate", "--json"}};
  for (const auto& arguments : commands) {
    const Finished run = Gatehouse(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage);
    EXPECT_EQ(run.json()["error"]["code"], "INVALID_ARGUMENT") << run.out;
    EXPECT_EQ(run.json()["error"]["reason"], "");
  }
  EXPECT_EQ(Gatehouse({"generate"}).out, "");
}

TEST(Usage, NumbersOutOfTheirBoundsAreNamedWithThem) {
  const auto refuses = [](std::vector<std::string> arguments, const std::string& flag, const std::string& value,
                          const std::string& wanted) {
    arguments.insert(arguments.end(), {flag, value});
    const Finished run = Gatehouse(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage) << run.out;
    EXPECT_THAT(run.err, HasSubstr(flag + ": '" + value + "' is not " + wanted)) << flag;
  };
  const std::vector<std::string> generate = {"generate", "-m", "m", "--prompt", "x"};
  const std::vector<std::string> calibrate = {"calibrate", "-m", "m", "--corpus", "f"};
  const std::vector<std::string> cost = {"experiment", "cost", "-m", "m", "--corpus", "f"};
  const std::string bounds = "a whole number in [0, 4294967295]";
  for (const char* value : {"-1", "4294967296", "1e3", "0x10", "x"}) {
    refuses(generate, "--max-tokens", value, bounds);
    refuses(generate, "--top-k", value, bounds);
    refuses({"score", "-m", "m", "--text", "x"}, "--window", value, bounds);
    refuses({"nonlinearity", "-m", "m", "--text", "x"}, "--layer", value, bounds);
    refuses(calibrate, "--fit-tokens", value, bounds);
    refuses(cost, "--sink-positions", value, bounds);
    refuses({"operations"}, "--limit", value, bounds);
    refuses({"operations", "report", "x"}, "--rows", value, bounds);
    refuses({"experiment", "gates", "-m", "m", "--corpus", "f"}, "--bottlenecks", value, bounds);
  }
  for (const char* value : {"-1", "18446744073709551616", "1.5"}) {
    for (const auto& command : {generate, calibrate, cost}) {
      refuses(command, "--seed", value, "a whole number in [0, 18446744073709551615]");
    }
  }
  refuses(generate, "--temperature", "warm", "a number");
  refuses(calibrate, "--ridge", "x", "a number");
}

TEST(Usage, AnEmptyValueIsNotTakenForNone) {
  for (const char* flag : {"--operating-point", "--layers", "--calibration", "--record"}) {
    const Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "x", flag, ""});
    EXPECT_EQ(run.exit_code, kExitUsage) << flag;
    EXPECT_THAT(run.err, HasSubstr(std::string(flag) + ": must not be empty"));
  }
  for (const char* flag : {"--html", "--npz"}) {
    const Finished run = Gatehouse({"experiment", "cost", "-m", "m", "--corpus", "f", flag, ""});
    EXPECT_EQ(run.exit_code, kExitUsage) << flag;
    EXPECT_THAT(run.err, HasSubstr(std::string(flag) + ": must not be empty"));
  }
}

TEST(Usage, ALayerHasOneThreshold) {
  const Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "x", "--gating", "gated", "--layer-threshold",
                                  "3-5=0.5", "--layer-threshold", "4=0.6"});
  EXPECT_EQ(run.exit_code, kExitUsage);
  EXPECT_THAT(run.err, HasSubstr("--layer-threshold: layer 4 is given twice"));
}

TEST(Usage, EveryCommandHasHelpWithExamples) {
  for (const char* command : {"generate", "score", "nonlinearity", "consensus", "report", "calibrate", "operations",
                              "models", "bench", "top", "doctor", "completion"}) {
    const Finished run = Gatehouse({command, "--help"});
    EXPECT_EQ(run.exit_code, 0) << command;
    EXPECT_THAT(run.out, HasSubstr("Examples:")) << command;
    EXPECT_THAT(Gatehouse({"--help"}).out, HasSubstr(command));
  }
}

TEST(Usage, TheServerMayComeFromTheEnvironment) {
  FakeServer server(Handlers());
  setenv("GATEHOUSE_SERVER", server.address().c_str(), 1);
  const Finished run = Gatehouse({"models"});
  unsetenv("GATEHOUSE_SERVER");
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

}  // namespace
}  // namespace gatehouse::cli
