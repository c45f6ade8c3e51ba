#ifndef GATEHOUSE_CLIENT_CLI_DOCTOR_CHECKS_H_
#define GATEHOUSE_CLIENT_CLI_DOCTOR_CHECKS_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/terminal.h"
#include "client/monitor/http_get.h"
#include "client/monitor/server_metrics.h"
#include "gatehouse/v1/models.pb.h"

namespace gatehouse::cli {

// One thing that was looked at, and what to do where it is not well.
struct Finding {
  enum class Level { kOk, kWarn, kFail };
  std::string check;  // stable: docs/client.md lists them
  Level level = Level::kOk;
  std::string detail;
  std::string advice;  // empty where there is nothing to do
};

// What this machine is, as far as a server on it depends on it.
struct Machine {
  std::set<std::string> cpu_flags;     // as /proc/cpuinfo names them
  std::optional<double> memory_bytes;  // that processes here may use: the container's limit, or all there is
  static Machine This();
};

// Each is a finding of its own; none of them asks a server.

// What it means that no connection can be made.
Finding JudgeConnection(const absl::Status& status, const std::string& server);
// What it means that gRPC failed on a connection that could be made; `reply` is what came back for a
// plain HTTP request to the same port.
Finding JudgeGrpcFailure(const absl::Status& status, const std::string& server, const std::string& reply);
Finding JudgeHealth(const std::string& name, const absl::StatusOr<bool>& serving);
Finding JudgeCalibration(const v1::DescribeModelResponse& model);
// Whether a model's kernels are the best that the CPU of the server, which is this machine, has.
Finding JudgeKernels(const v1::DescribeModelResponse& model, const Machine& machine);
Finding JudgeVersion(const std::string& client, const std::string& server);
Finding JudgeHeartbeat(double seconds);
// Whether a server on this machine has the memory that it may come to use.
Finding JudgeMemory(const client::ServerMetrics& metrics, const Machine& machine);
// `newest` is the latest moment that the server told of; InfinitePast where it told of none.
Finding JudgeClock(absl::Time now, absl::Time newest);
Finding JudgeTerminal(const Terminal& terminal, bool utf8);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_DOCTOR_CHECKS_H_
