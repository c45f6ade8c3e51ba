#include <CLI/App.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/time/clock.h"
#include "client/cli/doctor_checks.h"
#include "client/cli/flags.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

using client::HttpAddress;
using Level = Finding::Level;

constexpr char kDoctorExamples[] =
    R"(Looks at the server, its health, models, calibrations, metrics and memory, and at this machine, and says of each
what to do where something is wrong. Exit code 1 where something fails; warnings leave it at 0.

Examples:
  gatehouse doctor
  gatehouse --server 10.0.0.7:50151 doctor --metrics 10.0.0.7:9464
  gatehouse doctor --json | jq '.checks[] | select(.status != "ok")')";

constexpr char kMetricsPort[] = "9464";
constexpr absl::Duration kCheckTimeout = absl::Seconds(5);

bool IsHere(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

bool HasUtf8Locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = value;
    return locale.find("UTF-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

const char* WordOf(Level level) { return level == Level::kOk ? "ok" : level == Level::kWarn ? "warn" : "fail"; }

// One visit: asks, and keeps what it found.
class Doctor {
 public:
  Doctor(Session& session, HttpAddress server, HttpAddress metrics)
      : session_(session), server_(std::move(server)), metrics_(std::move(metrics)) {}

  const std::vector<Finding>& Run() {
    if (LookAtServer()) {
      LookAtModels();
      LookAtOperations();
    }
    LookAtMetrics();
    Add(JudgeClock(absl::Now(), newest_));
    Add(JudgeTerminal(session_.terminal, HasUtf8Locale()));
    return findings_;
  }

 private:
  void Add(Finding finding) { findings_.push_back(std::move(finding)); }
  client::CallOptions Call() const {
    return {.timeout = std::min(kCheckTimeout, session_.call.timeout),
            .canceller = session_.call.canceller,
            .replica = session_.call.replica};
  }
  bool here() const { return IsHere(server_.host); }
  void Hear(const std::string& time) {
    absl::Time parsed;
    if (absl::ParseTime(absl::RFC3339_full, time, &parsed, nullptr)) newest_ = std::max(newest_, parsed);
  }

  bool LookAtServer();
  void LookAtModels();
  void LookAtOperations();
  void LookAtMetrics();

  Session& session_;
  const HttpAddress server_, metrics_;
  const Machine machine_ = Machine::This();
  std::vector<Finding> findings_;
  std::vector<std::string> models_;
  absl::Time newest_ = absl::InfinitePast();
};

// False where there is no server to ask anything else.
bool Doctor::LookAtServer() {
  Add(JudgeConnection(client::TryConnect(server_, kCheckTimeout), server_.HostAndPort()));
  if (findings_.back().level == Level::kFail) return false;
  // gRPC is asked only where what answers a plain request may be it: a proxy answers both.
  const auto exchange = client::RawHttpExchange(server_, "/metrics", {.timeout = absl::Seconds(1)});
  const std::string reply = exchange.ok() ? *exchange : "";
  if (reply.starts_with('\x15') || reply.find("gatehouse_build_info") != std::string::npos) {
    Add(JudgeGrpcFailure(absl::UnavailableError("no gRPC"), server_.HostAndPort(), reply));
    return false;
  }
  const auto client = client::Client::Create({.server = session_.server, .attempts = 1});
  const auto list = client.ok() ? (*client)->ListModels(Call()) : client.status();
  if (!list.ok()) {
    Add(JudgeGrpcFailure(list.status(), server_.HostAndPort(), reply));
    return false;
  }
  Add({"grpc", Level::kOk,
       "answers as replica " + OneLine(list->replica()) + ", with " + std::to_string(list->models_size()) + " models",
       ""});
  for (const auto& model : list->models()) models_.push_back(model.name());
  for (const char* name : {"readiness", "liveness"}) Add(JudgeHealth(name, session_.client.CheckHealth(name, Call())));
  return true;
}

void Doctor::LookAtModels() {
  if (models_.empty()) Add({"models", Level::kFail, "the server has none", "start it with --model NAME=DIR"});
  for (const std::string& name : models_) {
    Add(JudgeHealth(name, session_.client.CheckHealth(name, Call())));
    const auto model = session_.client.DescribeModel(name, Call());
    if (!model.ok()) {
      Add({"model " + name, Level::kFail, std::string(model.status().message()), "look into the server's log"});
      continue;
    }
    for (const auto& calibration : model->calibrations()) Hear(calibration.created());
    Add(JudgeCalibration(*model));
    if (here()) Add(JudgeKernels(*model, machine_));
  }
}

// The server's state directory, as far as the server tells of it.
void Doctor::LookAtOperations() {
  const auto operations = session_.client.ListOperations(0, Call());
  if (!operations.ok()) {
    Add({"state", Level::kFail, std::string(operations.status().message()),
         "check the server's --state-dir: it must exist, be writable and have room"});
    return;
  }
  size_t running = 0;
  for (const v1::Operation& operation : *operations) {
    Hear(operation.created());
    Hear(operation.ended());
    running += client::IsDone(operation) ? 0 : 1;
  }
  Add({"state", Level::kOk,
       std::to_string(operations->size()) + " operations kept, " + std::to_string(running) + " waiting or running",
       ""});
}

void Doctor::LookAtMetrics() {
  const auto metrics = client::ServerMetrics::Fetch(metrics_, kCheckTimeout);
  if (!metrics.ok()) {
    Add({"metrics", Level::kWarn, metrics_.HostAndPort() + ": " + std::string(metrics.status().message()),
         "name the address of the server's --metrics-listen with --metrics"});
    Add(JudgeVersion(session_.version, ""));
    return;
  }
  Add({"metrics", Level::kOk, "at " + metrics_.HostAndPort(), ""});
  Add(JudgeVersion(session_.version, metrics->version));
  Add(JudgeHeartbeat(metrics->heartbeat_age));
  if (IsHere(metrics_.host)) Add(JudgeMemory(*metrics, machine_));
}

absl::StatusOr<int> RunDoctor(Session& session, const std::string& metrics_text) {
  const auto server = HttpAddress::Parse(session.server);
  if (!server.ok()) return server.status();
  // On the server's own host, unless another is named.
  auto metrics = HttpAddress::Parse(metrics_text.empty() ? session.server : metrics_text);
  if (!metrics.ok()) return metrics.status();
  if (metrics_text.empty()) metrics->port = kMetricsPort;
  Doctor doctor(session, *server, *metrics);
  const std::vector<Finding>& findings = doctor.Run();
  if (session.call.canceller->cancelled()) return absl::CancelledError("interrupted");
  const bool failed =
      std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.level == Level::kFail; });
  if (session.json) {
    Json checks = Json::array();
    for (const Finding& finding : findings) {
      checks.push_back({{"check", finding.check},
                        {"status", WordOf(finding.level)},
                        {"detail", finding.detail},
                        {"advice", finding.advice}});
    }
    session.Print({{"ok", !failed}, {"checks", std::move(checks)}});
    return failed ? kExitFailed : kExitOk;
  }
  const Terminal& terminal = session.terminal;
  int width = 0;
  for (const Finding& finding : findings) width = std::max(width, DisplayWidth(OneLine(finding.check)));
  for (const Finding& finding : findings) {
    const Style style = finding.level == Level::kOk     ? kGood
                        : finding.level == Level::kWarn ? Style{.foreground = 178}
                                                        : kBad;
    terminal.out << terminal.Paint(style, PadRight(WordOf(finding.level), 4)) << "  "
                 << PadRight(OneLine(finding.check), width) << "  " << OneLine(finding.detail) << "\n";
    if (!finding.advice.empty()) {
      terminal.out << std::string(static_cast<size_t>(width) + 8, ' ')
                   << terminal.Paint(kBold, "→ " + OneLine(finding.advice)) << "\n";
    }
  }
  return failed ? kExitFailed : kExitOk;
}

}  // namespace

void AddDoctor(CLI::App& app, Action& action) {
  auto metrics = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand("doctor", "Find what is wrong with a set-up, and say what to do");
  sub->add_option("--metrics", *metrics, "The server's metrics page (default: port 9464 of the server's host)")
      ->envname("GATEHOUSE_METRICS")
      ->check(NotEmpty())
      ->type_name("HOST:PORT");
  sub->footer(kDoctorExamples);
  sub->callback([metrics, &action] {
    if (!metrics->empty()) OrUsageError("--metrics", HttpAddress::Parse(*metrics));
    action = [metrics](Session& session) { return RunDoctor(session, *metrics); };
  });
}

}  // namespace gatehouse::cli
