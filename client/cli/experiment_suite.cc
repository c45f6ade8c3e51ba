#include "client/cli/experiment_suite.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "client/cli/experiment_inputs.h"
#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "client/cli/report_view.h"

namespace gatehouse::cli {
namespace {

constexpr char kExperimentSuiteExamples[] =
    R"(Runs experiment nonlinearity, polynomial, consensus, ablation and quorum on the same texts.  Ctrl-C asks
the server to cancel the one that runs, and ends the suite.  Of a large model, polynomial, ablation and
above all quorum take far longer than the rest: --polynomial-layers, --ablation-layers and --quorum-layers
bound them.

Example:
  gatehouse experiment suite -m novella-gpt2-7m --corpus novel.txt --report-tokens 20000 --directory reports)";

// The suite's flags, and what they ask for.
struct SuiteCommand : ExperimentInputs {
  uint32_t max_consensus = 0;                                               // 0: the server's default
  std::vector<uint32_t> polynomial_layers, ablation_layers, quorum_layers;  // empty: the layers of all
  std::string directory;                                                    // where the reports go; empty: nowhere
  size_t rows = 40;

  void Declare(CLI::App& app);
  absl::StatusOr<int> Run(Session& session, std::istream& in) const;

 private:
  struct Method {
    const char* name;
    void (*choose)(const SuiteCommand& command, v1::ExperimentSpec& spec);
  };
  static const Method kMethods[];

  static void Restrict(const std::vector<uint32_t>& layers, v1::ExperimentSpec& spec);

  // Takes the report of an experiment that succeeded, shows it, and writes its files.
  absl::StatusOr<Json> Take(Session& session, const std::string& operation, const std::string& name) const;
};

const SuiteCommand::Method SuiteCommand::kMethods[] = {
    {"nonlinearity", [](const SuiteCommand&, v1::ExperimentSpec& spec) { spec.mutable_nonlinearity(); }},
    {"polynomial",
     [](const SuiteCommand& command, v1::ExperimentSpec& spec) {
       spec.mutable_polynomial_probe();
       Restrict(command.polynomial_layers, spec);
     }},
    {"consensus", [](const SuiteCommand& command,
                     v1::ExperimentSpec& spec) { spec.mutable_consensus()->set_max_consensus(command.max_consensus); }},
    {"ablation",
     [](const SuiteCommand& command, v1::ExperimentSpec& spec) {
       spec.mutable_ablation()->set_max_consensus(command.max_consensus);
       Restrict(command.ablation_layers, spec);
     }},
    {"quorum",
     [](const SuiteCommand& command, v1::ExperimentSpec& spec) {
       spec.mutable_quorum()->set_max_consensus(command.max_consensus);
       Restrict(command.quorum_layers, spec);
     }},
};

void SuiteCommand::Restrict(const std::vector<uint32_t>& layers, v1::ExperimentSpec& spec) {
  if (!layers.empty()) spec.mutable_layers()->Assign(layers.begin(), layers.end());
}

void SuiteCommand::Declare(CLI::App& app) {
  DeclareInputs(app);
  app.add_option("--directory", directory, "Write each report as NAME.json and NAME.html into this folder")
      ->type_name("DIR")
      ->group("Output");
  app.add_option("--rows", rows, "Print at most this many rows of a table; 0: all")
      ->capture_default_str()
      ->group("Output");
  app.add_option("--max-consensus", max_consensus, "At most this many consensus neurons a layer (default: 7)")
      ->group("Method");
  const auto add_layers = [&app](const char* flag, std::vector<uint32_t>& layers, const char* help) {
    app.add_option_function<std::string>(
           flag, [flag, &layers](const std::string& text) { layers = OrUsageError(flag, ParseLayers(text)); }, help)
        ->type_name("LAYERS")
        ->group("Method");
  };
  add_layers("--polynomial-layers", polynomial_layers, "Layers of polynomial (default: those of --layers)");
  add_layers("--ablation-layers", ablation_layers, "Layers of ablation (default: those of --layers)");
  add_layers("--quorum-layers", quorum_layers, "Layers of quorum (default: those of --layers)");
  DeclareMethod(app);
}

absl::StatusOr<Json> SuiteCommand::Take(Session& session, const std::string& operation, const std::string& name) const {
  ReportFlags flags;
  const std::string path = (std::filesystem::path(directory) / name).string();
  if (!directory.empty()) flags.html = path + ".html";
  const auto report = TakeReport(session, operation, flags);
  if (!report.ok()) return report.status();
  Json json = ToJson(*report);
  if (!directory.empty()) {
    if (absl::Status status = WriteToFile(path + ".json", json.dump() + "\n"); !status.ok()) return status;
  }
  if (!session.json) {
    PrintReport(session.terminal, *report, rows);
    session.terminal.out << "\n";
    session.terminal.out.flush();
  }
  return json;
}

absl::StatusOr<int> SuiteCommand::Run(Session& session, std::istream& in) const {
  if (!directory.empty()) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return absl::InvalidArgumentError("cannot make the folder " + directory + ": " + error.message());
  }
  auto uploaded = Upload(session, in);
  if (!uploaded.ok()) return uploaded.status();
  Json json = {{"corpora", uploaded->corpora}, {"experiments", Json::array()}};
  bool all_succeeded = true;
  std::atomic<bool> interrupted = false;  // while none runs
  for (const Method& method : kMethods) {
    session.interrupts.OnInterrupt([&] { interrupted = true; });
    v1::StartOperationRequest request = uploaded->request;
    method.choose(*this, *request.mutable_experiment());
    const auto started = session.client.StartOperation(request, session.call);
    if (!started.ok()) return started.status();
    session.terminal.err << method.name << ": " << started->name() << "\n";
    const auto watched = WatchToEnd(session, started->name());
    if (!watched.ok()) return watched.status();
    if (watched->interrupted) interrupted = true;
    session.interrupts.OnInterrupt([&] { interrupted = true; });
    Json entry = {{"name", method.name}, {"operation", ToJson(watched->operation)}, {"report", Json()}};
    if (watched->operation.state() == v1::OPERATION_STATE_SUCCEEDED) {
      auto report = Take(session, started->name(), method.name);
      if (!report.ok()) {
        session.terminal.err << "The report stays at the server: gatehouse operations report " << started->name()
                             << "\n";
        return report.status();
      }
      entry["report"] = *std::move(report);
    } else {
      all_succeeded = false;
      if (!session.json) PrintFailure(session, watched->operation, method.name);
    }
    json["experiments"].push_back(std::move(entry));
    if (interrupted) break;
  }
  session.interrupts.OnInterrupt({});
  if (session.json) session.Print(json);
  if (interrupted) return kExitInterrupted;
  return all_succeeded ? kExitOk : kExitFailed;
}

}  // namespace

void AddExperimentSuite(CLI::App& experiment, std::istream& in, Action& action) {
  auto command = std::make_shared<SuiteCommand>();
  CLI::App* sub = experiment.add_subcommand("suite", "Every method of the discrete MLP, one after another");
  sub->footer(kExperimentSuiteExamples);
  sub->fallthrough();
  command->Declare(*sub);
  sub->callback(
      [command, &in, &action] { action = [command, &in](Session& session) { return command->Run(session, in); }; });
}

}  // namespace gatehouse::cli
