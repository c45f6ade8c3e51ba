#include <CLI/App.hpp>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/time/clock.h"
#include "client/cli/flags.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kExamples[] =
    R"(Uploads the text, starts the operation and watches it.  Ctrl-C asks the server to cancel it;
with --detach it goes on, and `gatehouse operations watch NAME` finds it again.  When --timeout
ends the watch, the operation goes on too.

Examples:
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt --name careful --gateable-cost-limit 0.02 --no-activate
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt --detach --json)";

struct CalibrateCommand {
  std::string model, corpus;
  v1::CalibrateSpec spec;
  bool no_activate = false, detach = false;

  void Declare(CLI::App& app);
  absl::StatusOr<int> Run(Session& session, std::istream& in) const;
  absl::StatusOr<v1::UploadCorpusResponse> Upload(Session& session, std::istream& in) const;
  absl::StatusOr<v1::Operation> Watch(Session& session, const v1::Operation& operation, bool* interrupted) const;
  void PrintText(Session& session, const v1::Operation& operation,
                 const std::vector<v1::LayerCalibration>& layers) const;
};

void CalibrateCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  app.add_option("--corpus", corpus, "The text to calibrate on, in UTF-8; - reads standard input")
      ->type_name("FILE")
      ->required();
  app.add_option_function<std::string>(
      "--name", [this](const std::string& name) { spec.set_calibration(name); },
      "Name of the calibration (default: made from the date)");
  app.add_flag("--no-activate", no_activate, "Do not make it the model's active calibration");
  app.add_flag("--detach", detach, "Start it and leave; it goes on at the server");

  constexpr char kMethod[] = "Method";
  const auto count = [&](const char* flag, void (v1::CalibrateSpec::*set)(uint32_t), const char* help) {
    app.add_option_function<uint32_t>(
           flag, [this, set](uint32_t value) { (spec.*set)(value); }, help)
        ->group(kMethod);
  };
  count("--fit-tokens", &v1::CalibrateSpec::set_fit_tokens, "Tokens for the surrogates (default: 10000)");
  count("--gate-tokens", &v1::CalibrateSpec::set_gate_tokens, "Tokens for gates and neurons (default: 25000)");
  count("--select-tokens", &v1::CalibrateSpec::set_select_tokens,
        "Tokens for choosing gateable layers (default: 5000)");
  count("--report-tokens", &v1::CalibrateSpec::set_report_tokens, "Tokens for the figures reported (default: 5000)");
  count("--window-tokens", &v1::CalibrateSpec::set_window_tokens, "Tokens of one block (default: 512, or the context)");
  count("--sink-positions", &v1::CalibrateSpec::set_sink_positions,
        "First positions that always run in full (default: 4)");
  count("--max-consensus", &v1::CalibrateSpec::set_max_consensus, "Most consensus neurons of a layer (default: 7)");
  app.add_option_function<double>(
         "--ridge", [this](double value) { spec.set_ridge(value); }, "Ridge strength of the surrogates (default: 0.01)")
      ->group(kMethod);
  app.add_option_function<double>(
         "--gateable-cost-limit", [this](double value) { spec.set_gateable_cost_limit(value); },
         "Highest linear cost of a gateable layer (default: 0.05)")
      ->group(kMethod);
  app.add_option_function<uint64_t>(
         "--seed", [this](uint64_t value) { spec.set_seed(value); }, "Seed (default: 0)")
      ->group(kMethod);
}

absl::StatusOr<v1::UploadCorpusResponse> CalibrateCommand::Upload(Session& session, std::istream& in) const {
  std::ifstream file;
  std::error_code size_unknown;
  uintmax_t size = 0;
  if (corpus != "-") {
    file.open(corpus, std::ios::binary);
    if (!file || std::filesystem::is_directory(corpus)) {
      return absl::InvalidArgumentError("cannot read " + corpus + ": " +
                                        (file ? "it is a directory" : std::strerror(errno)));
    }
    size = std::filesystem::file_size(corpus, size_unknown);
  }
  const std::string label = corpus == "-" ? "standard input" : std::filesystem::path(corpus).filename().string();
  ProgressBar progress(session.terminal);
  return session.client.UploadCorpus(
      corpus == "-" ? in : file, label,
      [&](uint64_t sent) {
        const double share = size > 0 ? static_cast<double>(sent) / static_cast<double>(size) : 0;
        if (session.terminal.err_is_terminal) progress.Update(share, "uploading " + label, absl::Now());
        return true;
      },
      session.call);
}

// Watches to the end.  The first Ctrl-C asks the server to cancel, and goes on watching.
absl::StatusOr<v1::Operation> CalibrateCommand::Watch(Session& session, const v1::Operation& operation,
                                                      bool* interrupted) const {
  std::atomic<bool> asked = false;
  client::Canceller canceller;
  session.interrupts.OnInterrupt([&] {
    asked = true;
    canceller.Cancel();
  });
  ProgressBar progress(session.terminal);
  const auto show = [&](const v1::Operation& state) {
    if (!client::IsDone(state)) progress.Update(state.progress(), state.stage(), absl::Now());
    return true;
  };
  auto last =
      session.client.WatchOperation(operation.name(), show, {.timeout = session.call.timeout, .canceller = &canceller});
  session.interrupts.OnInterrupt({});
  *interrupted = asked;
  if (!asked || last.ok()) return last;
  progress.Clear();
  session.terminal.err << "Asking the server to cancel the operation; Ctrl-C again leaves without waiting.\n";
  if (auto cancelled = session.client.CancelOperation(operation.name()); !cancelled.ok()) return cancelled.status();
  return session.client.WatchOperation(operation.name(), {});
}

void CalibrateCommand::PrintText(Session& session, const v1::Operation& operation,
                                 const std::vector<v1::LayerCalibration>& layers) const {
  const Terminal& terminal = session.terminal;
  if (operation.state() != v1::OPERATION_STATE_SUCCEEDED) {
    terminal.err << "gatehouse: calibration of " << OneLine(model) << " " << OperationStateName(operation.state())
                 << (operation.error_message().empty() ? "" : ": " + OneLine(operation.error_message())) << "\n";
    return;
  }
  terminal.out << terminal.Paint(kBold, "Calibration " + OneLine(operation.result())) << " of " << OneLine(model)
               << (no_activate ? ", not active" : ", now active") << " (" << HumanBytes(operation.result_bytes())
               << ")\n";
  if (!layers.empty()) PrintLayerTable(terminal, layers, 2);
}

absl::StatusOr<int> CalibrateCommand::Run(Session& session, std::istream& in) const {
  const auto uploaded = Upload(session, in);
  if (!uploaded.ok()) return uploaded.status();
  v1::StartOperationRequest request;
  request.set_model(model);
  *request.mutable_calibrate() = spec;
  request.mutable_calibrate()->set_corpus(uploaded->corpus());
  if (no_activate) request.mutable_calibrate()->set_activate(false);
  auto operation = session.client.StartOperation(request, session.call);
  if (!operation.ok()) return operation.status();
  Json json = {{"corpus", {{"name", uploaded->corpus()}, {"size_bytes", uploaded->size_bytes()}}}};
  bool interrupted = false;
  if (detach) {
    if (!session.json) {
      session.terminal.out << operation->name() << "\n";
      session.terminal.err << "It goes on at the server: gatehouse operations watch " << operation->name() << "\n";
    }
  } else {
    operation = Watch(session, *operation, &interrupted);
    if (!operation.ok()) return operation.status();
  }
  const bool succeeded = operation->state() == v1::OPERATION_STATE_SUCCEEDED;
  const auto layers =
      succeeded ? FetchLayers(session, model, operation->result()) : std::vector<v1::LayerCalibration>();
  json["operation"] = ToJson(*operation);
  json["layers"] = Json::array();
  for (const auto& layer : layers) json["layers"].push_back(ToJson(layer));
  if (session.json) {
    session.Print(json);
  } else if (!detach) {
    PrintText(session, *operation, layers);
  }
  if (interrupted) return kExitInterrupted;
  return succeeded || detach ? kExitOk : kExitFailed;
}

}  // namespace

void AddCalibrate(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<CalibrateCommand>();
  CLI::App* sub = app.add_subcommand("calibrate", "Fit surrogates and gates and find consensus neurons, from a text");
  command->Declare(*sub);
  sub->footer(kExamples);
  sub->callback(
      [command, &in, &action] { action = [command, &in](Session& session) { return command->Run(session, in); }; });
}

}  // namespace gatehouse::cli
