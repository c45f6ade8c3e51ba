#include "client/cli/cli.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>

#include "client/call_context.h"
#include "client/cli/flags.h"

namespace gatehouse::cli {
namespace {

constexpr char kDefaultServer[] = "127.0.0.1:50151";
constexpr char kVersion[] = "gatehouse " GATEHOUSE_VERSION;

constexpr char kFooter[] =
    R"(Flags of every command may stand before or after it.  `gatehouse COMMAND --help` explains a command.

Exit codes: 0 done, 1 failed, 2 bad command line, 3 server not available, 4 --timeout passed,
130 interrupted.  With --json a failure prints {"error": {"code", "reason", "message"}}.

Examples:
  gatehouse generate -m novella-gpt2-7m --prompt "The captain of the ship" --max-tokens 40
  gatehouse --server 10.0.0.7:50151 models --json)";

struct GlobalFlags {
  std::string server = kDefaultServer;
  std::string replica;
  double timeout_seconds = 0;
  bool json = false;
  std::string color = "auto";
};

void DeclareGlobals(CLI::App& app, GlobalFlags& flags) {
  app.add_option("-s,--server", flags.server, "The server")
      ->type_name("HOST:PORT")
      ->envname("GATEHOUSE_SERVER")
      ->capture_default_str();
  app.add_option("--replica", flags.replica,
                 "Of several replicas behind a proxy, the one to ask; operations are asked for at theirs anyway")
      ->type_name("NAME")
      ->check([](const std::string& text) {
        return client::CanBeSent(text) ? "" : "must be of printable ASCII, as a header is";
      });
  app.add_option("--timeout", flags.timeout_seconds, "Give up after this long; 0: never")
      ->type_name("SECONDS")
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double seconds = std::strtod(text.c_str(), &end);
        return *end == '\0' && seconds >= 0 && std::isfinite(seconds) ? "" : "must be a number of seconds, at least 0";
      });
  app.add_flag("--json", flags.json, "Print one JSON object; docs/client.md documents its fields");
  app.add_option("--color", flags.color, "auto colours on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  app.set_version_flag("--version", kVersion);
}

bool UsesColor(const std::string& mode, bool is_terminal) {
  if (mode == "always") return true;
  if (mode == "never") return false;
  const char* no_color = std::getenv("NO_COLOR");
  return is_terminal && (no_color == nullptr || *no_color == '\0');
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    default:
      return kExitFailed;
  }
}

// The model that the command line named, for hints.
std::string ModelOf(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) {
    const CLI::Option* option = sub->get_option_no_throw("--model");
    if (option != nullptr && option->count() > 0) return option->as<std::string>();
    if (const std::string inner = ModelOf(*sub); inner != "NAME") return inner;
  }
  return "NAME";
}

// The command that `app` has come to, such as "gatehouse experiment cost".
std::string CommandOf(const CLI::App& app) {
  const auto subs = app.get_subcommands();
  return subs.empty() ? app.get_name() : app.get_name() + " " + CommandOf(*subs.front());
}

// What is wrong with a command line, by the word that is.
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unexpected = app.remaining(/*recurse=*/true);
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    std::string message = "not expected:";
    for (const std::string& word : unexpected) message += " " + word;
    return message;
  }
  const CLI::App* last = &app;
  while (!last->get_subcommands().empty()) last = last->get_subcommands().front();
  if (error.get_name() != "RequiredError" || last->get_require_subcommand_min() == 0) return error.what();
  const auto command = std::find_if(unexpected.begin(), unexpected.end(),
                                    [](const std::string& word) { return !word.starts_with('-'); });
  if (command == unexpected.end()) return "a command is missing";
  return *command + " is no command of " + CommandOf(app);
}

int RefuseUsage(const CLI::App& app, const CLI::ParseError& error, bool json, const Environment& environment) {
  const absl::Status status = absl::InvalidArgumentError(DescribeUsageError(app, error));
  if (json) environment.out << ErrorJson(status).dump() << "\n";
  environment.err << "gatehouse: " << status.message() << "; see `" << CommandOf(app) << " --help`\n";
  return kExitUsage;
}

int RunAction(const Action& action, const GlobalFlags& flags, Terminal& terminal, const Environment& environment,
              const std::string& model) {
  const auto fail = [&](const absl::Status& status, int exit_code) {
    if (flags.json) terminal.out << ErrorJson(status).dump() << "\n";
    terminal.err << terminal.PaintError(kBad, "gatehouse: ") << DescribeError(status, flags.server, model) << "\n";
    return exit_code;
  };
  const auto client = client::Client::Create({.server = flags.server});
  if (!client.ok()) return fail(client.status(), kExitUsage);
  std::atomic<bool> interrupted = false;
  client::Canceller canceller;
  environment.interrupts.OnInterrupt([&] {
    interrupted = true;
    canceller.Cancel();
  });
  Session session{
      .client = **client,
      .server = flags.server,
      .call = {.timeout = flags.timeout_seconds > 0 ? absl::Seconds(flags.timeout_seconds) : absl::InfiniteDuration(),
               .canceller = &canceller,
               .replica = flags.replica},
      .json = flags.json,
      .terminal = terminal,
      .interrupts = environment.interrupts,
      .version = GATEHOUSE_VERSION};
  const auto exit_code = action(session);
  environment.interrupts.OnInterrupt({});
  terminal.out.flush();
  if (exit_code.ok() && !terminal.out) return fail(absl::DataLossError("cannot write standard output"), kExitFailed);
  if (exit_code.ok()) return *exit_code;
  if (interrupted && absl::IsCancelled(exit_code.status())) {
    return fail(absl::CancelledError("interrupted"), kExitInterrupted);
  }
  return fail(exit_code.status(), ExitCodeOf(exit_code.status()));
}

}  // namespace

int RunProgram(std::vector<std::string> arguments, const Environment& environment) {
  CLI::App app("Generates text on a Gatehouse server and shows how each token's MLPs were routed.", "gatehouse");
  app.footer(kFooter);
  app.require_subcommand(1);
  GlobalFlags flags;
  DeclareGlobals(app, flags);
  Action action;
  AddGenerate(app, environment.in, action);
  AddScore(app, environment.in, action);
  AddNonlinearity(app, environment.in, action);
  AddConsensus(app, environment.in, action);
  AddReport(app, environment.in, action);
  AddCalibrate(app, environment.in, action);
  AddExperiment(app, environment.in, action);
  AddOperations(app, action);
  AddModels(app, action);
  AddHealth(app, action);
  AddBench(app, environment.in, action);
  AddTop(app, action);
  AddDoctor(app, action);
  AddCompletion(app, action);
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) sub->fallthrough();
  CheckNumbers(app);
  const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return RefuseUsage(app, error, json, environment);
    app.exit(error, environment.out, environment.err);  // --help, --version
    return kExitOk;
  }
  Terminal terminal{.out = environment.out,
                    .err = environment.err,
                    .out_is_terminal = environment.out_is_terminal,
                    .err_is_terminal = environment.err_is_terminal,
                    .out_color = UsesColor(flags.color, environment.out_is_terminal),
                    .err_color = UsesColor(flags.color, environment.err_is_terminal),
                    .width = environment.width};
  return RunAction(action, flags, terminal, environment, ModelOf(app));
}

}  // namespace gatehouse::cli
