#ifndef GATEHOUSE_CLIENT_CLI_SESSION_H_
#define GATEHOUSE_CLIENT_CLI_SESSION_H_

#include <functional>
#include <istream>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/client.h"

namespace CLI {
class App;
}

namespace gatehouse::cli {

// Exit codes of the program; docs/client.md lists them.
enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnavailable = 3,
  kExitDeadline = 4,
  kExitInterrupted = 130,
};

// What to do when the user presses Ctrl-C.  Thread-safe: Raise comes from the thread
// that waits for signals.
class Interrupts {
 public:
  void OnInterrupt(std::function<void()> handler) {
    std::lock_guard lock(mutex_);
    handler_ = std::move(handler);
  }
  void Raise() {
    std::lock_guard lock(mutex_);
    if (handler_) handler_();
  }

 private:
  std::mutex mutex_;
  std::function<void()> handler_;
};

// What a command runs with.
struct Session {
  client::Client& client;
  std::string server;        // HOST:PORT, for further connections
  client::CallOptions call;  // the deadline of --timeout, and the end by Ctrl-C
  bool json = false;
  Terminal& terminal;
  Interrupts& interrupts;
  std::string version;  // of this program

  // Bytes that are no UTF-8, as a page of metrics may have them, become U+FFFD.
  void Print(const Json& json_object) const {
    terminal.out << json_object.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
};

// One run of a command: returns the exit code.
using Action = std::function<absl::StatusOr<int>(Session&)>;

// Each declares a subcommand with its flags; when the command line names it, `action`
// is set to what it does.  `in` is what "-" reads.
void AddGenerate(CLI::App& app, std::istream& in, Action& action);
void AddScore(CLI::App& app, std::istream& in, Action& action);
void AddNonlinearity(CLI::App& app, std::istream& in, Action& action);
void AddConsensus(CLI::App& app, std::istream& in, Action& action);
void AddCalibrate(CLI::App& app, std::istream& in, Action& action);
void AddExperiment(CLI::App& app, std::istream& in, Action& action);
void AddOperations(CLI::App& app, Action& action);
void AddReport(CLI::App& app, std::istream& in, Action& action);
void AddModels(CLI::App& app, Action& action);
void AddHealth(CLI::App& app, Action& action);
void AddBench(CLI::App& app, std::istream& in, Action& action);
void AddTop(CLI::App& app, Action& action);
void AddDoctor(CLI::App& app, Action& action);
// After all others, whose flags it completes.
void AddCompletion(CLI::App& app, Action& action);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_SESSION_H_
