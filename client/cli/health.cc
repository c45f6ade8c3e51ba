#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kHealthExamples[] = R"(Exit codes: 0 it serves, 1 it does not, 3 no server answers.

Examples:
  gatehouse health
  gatehouse --timeout 5 health novella-gpt2-7m
  gatehouse health liveness)";

absl::StatusOr<int> CheckHealth(Session& session, const std::string& name) {
  const auto serving = session.client.CheckHealth(name, session.call);
  if (!serving.ok()) return serving.status();
  if (session.json) {
    session.Print({{"name", name}, {"serving", *serving}});
  } else {
    session.terminal.out << OneLine(name) << ": "
                         << (*serving ? session.terminal.Paint(kGood, "serving")
                                      : session.terminal.Paint(kBad, "not serving"))
                         << "\n";
  }
  return *serving ? kExitOk : kExitFailed;
}

}  // namespace

void AddHealth(CLI::App& app, Action& action) {
  auto name = std::make_shared<std::string>("readiness");
  CLI::App* sub = app.add_subcommand("health", "Ask whether the server serves, for probes and scripts");
  sub->footer(kHealthExamples);
  sub->add_option("NAME", *name, "readiness, liveness, a model or a service")->capture_default_str();
  sub->final_callback([name, &action] { action = [name](Session& session) { return CheckHealth(session, *name); }; });
}

}  // namespace gatehouse::cli
