#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <future>
#include <memory>
#include <optional>

#include "absl/time/clock.h"
#include "client/cli/flags.h"
#include "client/cli/session.h"
#include "client/cli/top_view.h"
#include "client/monitor/server_metrics.h"

namespace gatehouse::cli {
namespace {

using client::HttpAddress;
using client::ServerMetrics;

constexpr char kTopExamples[] =
    R"(Reads the servers' metrics pages. On a terminal it shows a screen that renews itself until Ctrl-C; elsewhere it prints
a line for each model. Rates and latencies are of the last --window seconds. Models of several servers are summed.

Examples:
  gatehouse top
  gatehouse top --metrics 10.0.0.7:9464 --metrics 10.0.0.8:9464
  gatehouse top --once --json | jq '.models[] | {model, running, linear_fraction}')";

constexpr char kDefaultMetrics[] = "127.0.0.1:9464";
constexpr absl::Duration kFetchTimeout = absl::Seconds(3);
constexpr char kEnterScreen[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeaveScreen[] = "\x1b[?25h\x1b[?1049l";

// All servers at a moment; one that could not be asked has a status.
struct Sample {
  std::chrono::steady_clock::time_point time;
  std::vector<absl::StatusOr<ServerMetrics>> servers;
};

struct TopCommand {
  std::vector<std::string> metrics;
  double interval = 1, window = 10;
  bool once = false;

  void Declare(CLI::App& app);
  void Build();
  absl::StatusOr<int> Run(Session& session) const;

 private:
  Sample Take() const;
  TopView View(const std::deque<Sample>& samples) const;
  void Show(Session& session, const TopView& view) const;

  std::vector<HttpAddress> addresses_;
};

void TopCommand::Declare(CLI::App& app) {
  AddRepeatable(app, "--metrics", metrics,
                "The metrics page of a server; several may be given (default: 127.0.0.1:9464)")
      ->envname("GATEHOUSE_METRICS")
      ->type_name("HOST:PORT");
  const CLI::Validator seconds(
      [](std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && value >= 0.1 && value <= 3600;
        return good ? std::string() : "'" + text + "' is not a number of seconds in [0.1, 3600]";
      },
      "");
  app.add_option("--interval", interval, "Look again after so many seconds")
      ->check(seconds)
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--window", window, "Rates and latencies are of the last so many seconds")
      ->check(seconds)
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_flag("--once", once, "Look twice, --interval apart, print what came between, and end");
}

void TopCommand::Build() {
  if (metrics.empty()) metrics = {kDefaultMetrics};
  for (const std::string& text : metrics) {
    addresses_.push_back(OrUsageError("--metrics", HttpAddress::Parse(text)));
  }
}

Sample TopCommand::Take() const {
  std::vector<std::future<absl::StatusOr<ServerMetrics>>> answers;
  for (const HttpAddress& address : addresses_) {
    answers.push_back(std::async(std::launch::async, [&] { return ServerMetrics::Fetch(address, kFetchTimeout); }));
  }
  Sample sample;
  for (auto& answer : answers) sample.servers.push_back(answer.get());
  sample.time = std::chrono::steady_clock::now();
  return sample;
}

TopView TopCommand::View(const std::deque<Sample>& samples) const {
  const Sample& now = samples.back();
  const Sample& before = samples.front();
  TopView view;
  view.time = absl::Now();
  view.seconds = std::chrono::duration<double>(now.time - before.time).count();
  for (size_t i = 0; i < addresses_.size(); ++i) {
    ReplicaView& replica = view.replicas.emplace_back();
    replica.address = addresses_[i].HostAndPort();
    replica.status = now.servers[i].status();
    if (!replica.status.ok()) continue;
    const ServerMetrics& server = *now.servers[i];
    replica.version = server.version;
    replica.heartbeat_age = server.heartbeat_age;
    replica.resident_bytes = server.resident_bytes;
    // Of a server that has just come, nothing is recent yet.
    const ServerMetrics& earlier = before.servers[i].ok() ? *before.servers[i] : server;
    for (const auto& [name, model] : server.models) {
      client::ModelMetrics recent = model;
      const auto known = earlier.models.find(name);
      if (known != earlier.models.end()) recent.Subtract(known->second);
      replica.running += model.running;
      replica.waiting += model.waiting;
      replica.tokens_per_second += (recent.prompt_tokens + recent.generated_tokens) / view.seconds;
      ModelView& sum = view.models[name];
      ++sum.replicas;
      sum.now.Add(model);
      sum.recent.Add(recent);
    }
  }
  return view;
}

void TopCommand::Show(Session& session, const TopView& view) const {
  Terminal& terminal = session.terminal;
  if (session.json) {
    session.Print(ToJson(view));
    terminal.out << std::flush;
  } else if (terminal.out_is_terminal || once) {
    if (!once) terminal.out << "\x1b[H\x1b[J";
    PrintScreen(terminal, view);
    terminal.out << std::flush;
  } else {
    PrintLines(terminal, view);
  }
}

absl::StatusOr<int> TopCommand::Run(Session& session) const {
  client::Canceller& interrupted = *session.call.canceller;
  const absl::Time end = absl::Now() + session.call.timeout;
  std::deque<Sample> samples = {Take()};
  const auto any_up = [&] {
    return std::any_of(samples.back().servers.begin(), samples.back().servers.end(),
                       [](const auto& server) { return server.ok(); });
  };
  if (!any_up()) {
    const absl::Status& status = samples.back().servers.front().status();
    return absl::Status(
        absl::StatusCode::kUnavailable,
        "no metrics page at " + addresses_.front().HostAndPort() + " (" + std::string(status.message()) +
            "): name the one of the server's --metrics-listen with --metrics, or run `gatehouse doctor`");
  }
  const bool screen = session.terminal.out_is_terminal && !session.json && !once;
  if (screen) session.terminal.out << kEnterScreen;
  while (!interrupted.WaitFor(std::min(absl::Seconds(interval), end - absl::Now())) && session.terminal.out) {
    samples.push_back(Take());
    const auto limit = samples.back().time - std::chrono::duration<double>(window);
    while (samples.size() > 2 && samples[1].time <= limit) samples.pop_front();
    Show(session, View(samples));
    if (once || absl::Now() >= end) break;
  }
  if (screen) session.terminal.out << kLeaveScreen << std::flush;
  // Ctrl-C is how a view that renews itself ends.
  return once && interrupted.cancelled() ? kExitInterrupted : kExitOk;
}

}  // namespace

void AddTop(CLI::App& app, Action& action) {
  auto command = std::make_shared<TopCommand>();
  CLI::App* sub = app.add_subcommand("top", "Watch servers: requests, tokens a second, latencies, the linear share");
  command->Declare(*sub);
  sub->footer(kTopExamples);
  sub->callback([command, &action] {
    command->Build();
    action = [command](Session& session) { return command->Run(session); };
  });
}

}  // namespace gatehouse::cli
