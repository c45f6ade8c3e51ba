#include <CLI/App.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/time/clock.h"
#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "client/cli/report_view.h"
#include "client/cli/session.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

constexpr char kOperationsExamples[] =
    R"(An operation's name is "operations/REPLICA/ID"; its ID alone will do where it is in the list.

Examples:
  gatehouse operations
  gatehouse operations watch ID
  gatehouse operations report ID --html report.html
  gatehouse operations fetch ID --output calibration.safetensors
  gatehouse operations fetch ID --file arrays.npz
  gatehouse operations fetch ID --all --output folder)";

struct OperationsCommand {
  std::string name;
  std::string output, file;
  bool all = false;
  ReportFlags report;
  size_t limit = 100;
};

// The full name of an operation given by its ID.
absl::StatusOr<std::string> FullName(Session& session, const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const auto operations = session.client.ListOperations(0, session.call);
  if (!operations.ok()) return operations.status();
  for (const v1::Operation& operation : *operations) {
    if (operation.name().ends_with("/" + name)) return operation.name();
  }
  return absl::NotFoundError("no operation has the ID " + name + "; `gatehouse operations` lists them");
}

Style StateStyle(v1::OperationState state) {
  switch (state) {
    case v1::OPERATION_STATE_SUCCEEDED:
      return kGood;
    case v1::OPERATION_STATE_FAILED:
    case v1::OPERATION_STATE_INTERRUPTED:
      return kBad;
    case v1::OPERATION_STATE_RUNNING:
      return kBold;
    default:
      return kDim;
  }
}

// What is worth saying of an operation in its state.
std::string Detail(const v1::Operation& operation) {
  if (!operation.error_message().empty()) return OneLine(operation.error_message());
  if (!operation.result().empty()) return OneLine(operation.result());
  return client::IsDone(operation) ? "" : OneLine(operation.stage());
}

void PrintOperations(const Terminal& terminal, const std::vector<v1::Operation>& operations) {
  Table table({{"name"}, {"kind"}, {"model"}, {"state"}, {"done", true}, {"created"}, {"result"}});
  for (const v1::Operation& operation : operations) {
    table.Add({{OneLine(operation.name()), kPlain},
               {OneLine(operation.kind()), kPlain},
               {OneLine(operation.model()), kPlain},
               {OperationStateName(operation.state()), StateStyle(operation.state())},
               {Percent(operation.progress(), 0), kPlain},
               {OneLine(operation.created()), kDim},
               {Detail(operation), kPlain}});
  }
  table.Print(terminal);
}

absl::StatusOr<int> ShowOne(Session& session, const absl::StatusOr<v1::Operation>& operation) {
  if (!operation.ok()) return operation.status();
  if (session.json) {
    session.Print(ToJson(*operation));
  } else {
    PrintOperations(session.terminal, {*operation});
  }
  return kExitOk;
}

absl::StatusOr<int> List(Session& session, const OperationsCommand& command) {
  const auto operations = session.client.ListOperations(command.limit, session.call);
  if (!operations.ok()) return operations.status();
  if (session.json) {
    Json list = Json::array();
    for (const v1::Operation& operation : *operations) list.push_back(ToJson(operation));
    session.Print({{"operations", std::move(list)}});
  } else if (operations->empty()) {
    session.terminal.out << "No operations yet; `gatehouse calibrate` and `gatehouse experiment` start one.\n";
  } else {
    PrintOperations(session.terminal, *operations);
  }
  return kExitOk;
}

absl::StatusOr<int> Watch(Session& session, const std::string& name) {
  ProgressBar progress(session.terminal);
  const auto operation = session.client.WatchOperation(
      name,
      [&](const v1::Operation& state) {
        if (!client::IsDone(state)) progress.Update(state.progress(), state.stage(), absl::Now());
        return true;
      },
      session.call);
  progress.Clear();
  const auto shown = ShowOne(session, operation);
  if (!shown.ok()) return shown;
  return operation->state() == v1::OPERATION_STATE_SUCCEEDED ? kExitOk : kExitFailed;
}

// A path of the server's below a folder of ours, without a step out of it.
bool IsInside(const std::filesystem::path& path) {
  return !path.empty() && path.is_relative() && std::find(path.begin(), path.end(), "..") == path.end();
}

// Every file that the operation left, below a folder.
absl::StatusOr<int> FetchAll(Session& session, const v1::Operation& operation, const std::string& folder) {
  Json fetched = Json::array();
  for (const std::string& file : operation.files()) {
    if (!IsInside(file)) return absl::DataLossError("the server names a file outside the operation's folder");
    const std::filesystem::path path = std::filesystem::path(folder) / file;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) return absl::FailedPreconditionError("cannot write " + path.string() + ": " + error.message());
    const auto size = FetchToFile(session, operation.name(), file, path);
    if (!size.ok()) return size.status();
    fetched.push_back({{"path", path.string()}, {"size_bytes", *size}});
    if (!session.json) session.terminal.out << OneLine(path.string()) << " (" << HumanBytes(*size) << ")\n";
  }
  if (session.json) session.Print({{"files", std::move(fetched)}});
  return kExitOk;
}

absl::StatusOr<int> Fetch(Session& session, const std::string& name, const OperationsCommand& command) {
  std::string path = command.output;
  if (path == "-" && !command.all) {
    const auto size = session.client.FetchResult(name, command.file, session.terminal.out, session.call);
    if (!size.ok()) return size.status();
    return kExitOk;
  }
  const auto operation = session.client.GetOperation(name, session.call);
  if (!operation.ok()) return operation.status();
  if (command.all) return FetchAll(session, *operation, path.empty() ? "." : path);
  if (path.empty()) {
    std::string file = command.file.empty() ? operation->result() : command.file;
    if (command.file.empty() && operation->kind() == "calibrate" && !file.empty()) file += ".safetensors";
    path = std::filesystem::path(file).filename().string();
    if (path.empty()) path = "result";
  }
  const auto size = FetchToFile(session, name, command.file, path);
  if (!size.ok()) return size.status();
  if (session.json) {
    session.Print({{"path", path}, {"size_bytes", *size}});
  } else {
    session.terminal.out << path << " (" << HumanBytes(*size) << ")\n";
  }
  return kExitOk;
}

}  // namespace

void AddOperations(CLI::App& app, Action& action) {
  auto command = std::make_shared<OperationsCommand>();
  CLI::App* sub = app.add_subcommand("operations", "List, watch, cancel long work, and fetch its results");
  sub->footer(kOperationsExamples);
  sub->require_subcommand(0, 1);
  sub->add_option("--limit", command->limit, "List at most this many; 0: all")->capture_default_str();
  // Declares `operations VERB NAME`, which does `run` with the operation's full name.
  const auto add = [&](const char* verb, const char* help, auto run) {
    CLI::App* verb_sub = sub->add_subcommand(verb, help);
    verb_sub->fallthrough();
    verb_sub->add_option("NAME", command->name, "The operation's name, or its ID")->required();
    verb_sub->final_callback([command, &action, run] {
      action = [command, run](Session& session) -> absl::StatusOr<int> {
        const auto name = FullName(session, command->name);
        if (!name.ok()) return name.status();
        return run(session, *name);
      };
    });
    return verb_sub;
  };
  // Runs before the verb's own callback, which replaces it.
  sub->parse_complete_callback(
      [command, &action] { action = [command](Session& session) { return List(session, *command); }; });
  sub->add_subcommand("list", "List operations, newest first (also without a verb)")->fallthrough();
  add("get", "Show one operation", [](Session& session, const std::string& name) {
    return ShowOne(session, session.client.GetOperation(name, session.call));
  });
  add("watch", "Follow one until it ends; succeeds if it does", Watch);
  add("cancel", "Ask one to stop", [](Session& session, const std::string& name) {
    return ShowOne(session, session.client.CancelOperation(name, session.call));
  });
  command->report.Add(*add(
      "report", "Show an experiment's report",
      [command](Session& session, const std::string& name) { return ShowReport(session, name, command->report); }));
  CLI::App* const fetch =
      add("fetch", "Fetch the result file, or another that it left",
          [command](Session& session, const std::string& name) { return Fetch(session, name, *command); });
  fetch
      ->add_option("-o,--output", command->output,
                   "Where to write it; - is standard output (default: its own name). With --all, a folder")
      ->check(NotEmpty())
      ->type_name("FILE");
  CLI::Option* const file = fetch
                                ->add_option("--file", command->file,
                                             "Which one, as `operations get --json` lists them (default: the result)")
                                ->check(NotEmpty())
                                ->type_name("NAME");
  fetch->add_flag("--all", command->all, "Every file that it left")->excludes(file);
}

}  // namespace gatehouse::cli
