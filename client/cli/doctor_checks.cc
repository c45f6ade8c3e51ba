#include "client/cli/doctor_checks.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include "client/cli/render.h"

namespace gatehouse::cli {
namespace {

using Level = Finding::Level;

// Slower than this the engine is at least busy; health calls it hung after 60 s.
constexpr double kSlowHeartbeat = 10, kHungHeartbeat = 60;
constexpr int kNarrow = 60;  // columns
constexpr absl::Duration kClockSlack = absl::Minutes(1);

bool HasPart(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string StatusText(const absl::Status& status) {
  const std::string message = OneLine(std::string(status.message()));
  return absl::StatusCodeToString(status.code()) + (message.empty() ? "" : ": " + Truncate(message, 160));
}

// A number alone in a file, as control groups keep theirs; nothing for "max".
std::optional<double> NumberIn(const char* path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// How good a kernel is, from what its name says.
int RankOf(const std::string& kernels) {
  if (kernels == "avx512_bf16") return 3;
  if (kernels == "avx512") return 2;
  return kernels == "avx2" ? 1 : 0;
}

int BestRank(const std::set<std::string>& flags) {
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return flags.contains(name); });
  };
  if (!has({"avx2", "fma"})) return 0;
  if (!has({"avx512f", "avx512bw", "avx512dq", "avx512vl"})) return 1;
  return has({"avx512_bf16"}) ? 3 : 2;
}

}  // namespace

Machine Machine::This() {
  Machine machine;
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    for (std::string word; words >> word;) machine.cpu_flags.insert(word);
    break;
  }
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) machine.memory_bytes = static_cast<double>(pages) * static_cast<double>(page);
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const auto limit = NumberIn(path);
    if (limit.has_value() && *limit < machine.memory_bytes.value_or(1e300)) machine.memory_bytes = limit;
  }
  return machine;
}

Finding JudgeConnection(const absl::Status& status, const std::string& server) {
  Finding finding{"server", Level::kFail, OneLine(std::string(status.message())), ""};
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {"server", Level::kOk, server + " takes connections", ""};
    case absl::StatusCode::kNotFound:
      finding.advice = "correct the name in --server, or GATEHOUSE_SERVER";
      break;
    case absl::StatusCode::kDeadlineExceeded:
      finding.detail = server + " does not answer: nothing is at that address, or a firewall drops what is sent to it";
      finding.advice = "check the host in --server, and that its port may be reached from here";
      break;
    default:
      finding.detail = server + ": " + finding.detail;
      finding.advice = HasPart(finding.detail, "refused")
                           ? "nothing listens there: start a server with `gatehouse-server --listen " + server +
                                 "`, or name another with --server"
                           : "check --server and the network";
  }
  return finding;
}

Finding JudgeGrpcFailure(const absl::Status& status, const std::string& server, const std::string& reply) {
  Finding finding{"grpc", Level::kFail, StatusText(status), "look into the server's log"};
  if (absl::IsUnimplemented(status)) {
    finding.detail = "a gRPC server answers, but it knows no gatehouse.v1.ModelService";
    finding.advice = "another program, or a much older gatehouse-server, listens there: check --server";
  } else if (reply.starts_with("HTTP/1.") && HasPart(reply, "gatehouse_build_info")) {
    finding.detail = server + " is the metrics page of a gatehouse-server, not its gRPC port";
    finding.advice = "use the port of its --listen (50151 by default) for --server, and this one for --metrics";
  } else if ((reply.starts_with("HTTP/1.") && HasPart(reply, "HTTPS")) || reply.starts_with('\x15')) {
    finding.detail = server + " speaks TLS, and this client does not";
    finding.advice = "connect to a port without TLS, such as through the proxy's plain one";
  } else if (reply.starts_with("HTTP/1.")) {
    finding.detail = "what answers at " + server + " is a web server, not gRPC";
    finding.advice = "use the port of the server's --listen (50151 by default)";
  } else if (absl::IsDeadlineExceeded(status)) {
    finding.detail = server + " takes connections but does not answer gRPC";
    finding.advice = "another program listens there, or the server hangs: look into its log, or restart it";
  } else if (absl::IsUnavailable(status)) {
    finding.advice = "the server is starting or shutting down, or another program listens there: try again";
  }
  return finding;
}

Finding JudgeHealth(const std::string& name, const absl::StatusOr<bool>& serving) {
  const std::string check = "health " + name;
  if (!serving.ok() && absl::IsUnimplemented(serving.status())) {
    return {check, Level::kWarn, "the server has no health service", "it is no gatehouse-server of this version"};
  }
  if (!serving.ok()) return {check, Level::kFail, StatusText(serving.status()), "look into the server's log"};
  if (*serving) return {check, Level::kOk, "serving", ""};
  return {check, Level::kFail, "not serving",
          name == "liveness" ? "the engine hangs: look into the server's log, and restart it"
                             : "the server is shutting down, or its engine hangs"};
}

Finding JudgeCalibration(const v1::DescribeModelResponse& model) {
  const std::string check = "calibration " + model.name();
  if (!model.has_calibration()) {
    return {check, Level::kWarn, "none: only --gating full works",
            "gatehouse calibrate --model " + model.name() + " --corpus FILE"};
  }
  const auto& layers = model.calibration().layers();
  const auto gateable = std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.gateable(); });
  const std::string detail = model.calibration().name() + ", " + std::to_string(gateable) + " of " +
                             Count(static_cast<uint64_t>(layers.size()), "layer") + " gateable";
  if (gateable == 0 && model.calibration().operating_points().empty()) {
    return {check, Level::kWarn, detail + ": gated calls run in full",
            "name layers with --layers, or calibrate to a budget: gatehouse calibrate --model " + model.name() +
                " --corpus FILE --budget 1%"};
  }
  return {check, Level::kOk, detail, ""};
}

Finding JudgeKernels(const v1::DescribeModelResponse& model, const Machine& machine) {
  const std::string check = "kernels " + model.name();
  const std::string detail = model.kernels() + " on " + model.device() + ", " + model.dtype();
  if (model.device() == "cpu" && RankOf(model.kernels()) < BestRank(machine.cpu_flags)) {
    return {check, Level::kWarn, detail + ": this CPU has faster ones",
            "start the server with --kernels auto, the default"};
  }
  return {check, Level::kOk, detail, ""};
}

Finding JudgeVersion(const std::string& client, const std::string& server) {
  if (server.empty()) return {"version", Level::kWarn, "client " + client + ", server unknown", "see metrics"};
  if (client == server) return {"version", Level::kOk, "client and server are " + client, ""};
  return {"version", Level::kWarn, "client " + client + ", server " + server,
          "use a client and a server of one version: newer flags may fail on an older server"};
}

Finding JudgeHeartbeat(double seconds) {
  const std::string detail = "the engine went round " + Fixed(seconds, 1) + " s ago";
  if (seconds > kHungHeartbeat) return {"engine", Level::kFail, detail, "it hangs: look into the log, and restart it"};
  if (seconds > kSlowHeartbeat) {
    return {"engine", Level::kWarn, detail, "a step takes very long: lower --prefill-chunk, or use a smaller model"};
  }
  return {"engine", Level::kOk, detail, ""};
}

Finding JudgeMemory(const client::ServerMetrics& metrics, const Machine& machine) {
  double kv_free = 0;
  for (const auto& [name, model] : metrics.models) {
    kv_free += (model.kv_capacity - model.kv_used) * model.kv_page_bytes;
  }
  const double most = metrics.resident_bytes + std::max(0.0, kv_free);
  const std::string uses = "the server holds " + HumanBytes(static_cast<uint64_t>(metrics.resident_bytes)) +
                           " and may come to " + HumanBytes(static_cast<uint64_t>(most));
  if (!machine.memory_bytes.has_value()) return {"memory", Level::kOk, uses, ""};
  const std::string detail = uses + " of " + HumanBytes(static_cast<uint64_t>(*machine.memory_bytes));
  if (most < *machine.memory_bytes) return {"memory", Level::kOk, detail, ""};
  return {"memory", Level::kWarn, detail, "lower the server's --kv-memory-mb, or give it more memory"};
}

Finding JudgeClock(absl::Time now, absl::Time newest) {
  const std::string time = absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", now, absl::UTCTimeZone());
  if (newest > now + kClockSlack) {
    return {"clock", Level::kWarn,
            "it is " + time + " here, but the server told of " +
                absl::FormatTime("%Y-%m-%d %H:%M:%S", newest, absl::UTCTimeZone()),
            "set the clock of this machine or the server's"};
  }
  if (now < absl::FromCivil(absl::CivilDay(2025, 1, 1), absl::UTCTimeZone())) {
    return {"clock", Level::kWarn, "it is " + time + " here", "set this machine's clock"};
  }
  return {"clock", Level::kOk, time, ""};
}

Finding JudgeTerminal(const Terminal& terminal, bool utf8) {
  if (!terminal.out_is_terminal) return {"terminal", Level::kOk, "the output is no terminal", ""};
  const std::string detail = std::to_string(terminal.width) + " columns, " +
                             (terminal.out_color ? "colours" : "no colours") + (utf8 ? "" : ", no UTF-8");
  if (!utf8) {
    return {"terminal", Level::kWarn, detail,
            "set a UTF-8 locale, such as LANG=C.UTF-8: heat maps are drawn with blocks"};
  }
  if (terminal.width < kNarrow) {
    return {"terminal", Level::kWarn, detail, "heat maps and tables want 60 columns or more"};
  }
  return {"terminal", Level::kOk, detail, ""};
}

}  // namespace gatehouse::cli
