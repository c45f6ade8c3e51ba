#include <CLI/App.hpp>
#include <memory>

#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "client/cli/render.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kCalibrateExamples[] =
    R"(Uploads the text, starts the operation and watches it.  Ctrl-C asks the server to cancel it;
with --detach it goes on, and `gatehouse operations watch NAME` finds it again.  When --timeout
ends the watch, the operation goes on too.

Examples:
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt --name careful --gateable-cost-limit 0.02 --no-activate
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt --budget 1% --budget 5%
  gatehouse calibrate -m novella-gpt2-7m --corpus novel.txt --detach --json)";

struct CalibrateCommand {
  std::string model, corpus;
  v1::CalibrateSpec spec;
  bool no_activate = false, detach = false;

  void Declare(CLI::App& app);
  void DeclareBudget(CLI::App& app);
  absl::StatusOr<int> Run(Session& session, std::istream& in) const;
  void PrintText(Session& session, const v1::Operation& operation, const v1::CalibrationDescription& calibration) const;
};

void CalibrateCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  app.add_option("--corpus", corpus, "The text to calibrate on, in UTF-8; - reads standard input")
      ->type_name("FILE")
      ->required();
  app.add_option_function<std::string>(
         "--name", [this](const std::string& name) { spec.set_calibration(name); },
         "Name of the calibration (default: made from the date)")
      ->check(NotEmpty());
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
  AddSeedFlag(
      app, [this](uint64_t value) { spec.set_seed(value); }, "Seed (default: 0)")
      ->group(kMethod);
  DeclareBudget(app);
}

void CalibrateCommand::DeclareBudget(CLI::App& app) {
  constexpr char kBudget[] = "Whole-model gating";
  const auto set = [this]() -> v1::BudgetSpec& { return *spec.mutable_budget(); };
  CLI::Option* const budget = app.add_option_function<std::vector<std::string>>(
      "--budget",
      [set](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) set().add_budgets(OrUsageError("--budget", ParseShare(text)));
      },
      "Choose layers and thresholds jointly so that perplexity grows by at most this, such as 1%; repeatable, one "
      "operating point each");
  budget->allow_extra_args(false)->type_name("SHARE")->group(kBudget);
  const auto add = [&](CLI::Option* option) { option->needs(budget)->group(kBudget); };
  add(app.add_flag_callback(
      "--no-sequential", [set] { set().set_sequential(false); }, "Fit each surrogate on the full model's stream"));
  add(app.add_flag_callback(
      "--no-ladders", [set] { set().set_ladders(false); }, "No ladders: surrogates alone"));
  add(app.add_option_function<double>(
      "--ladder-share", [set](double value) { set().set_ladder_share(value); },
      "Share of a layer's neurons that its ladder keeps (default: 0.25)"));
  add(app.add_flag_callback(
      "--no-tune", [set] { set().set_tune(false); }, "Do not tune surrogates and gates together"));
  add(app.add_option_function<uint32_t>(
      "--tune-steps", [set](uint32_t value) { set().set_tune_steps(value); }, "Steps of tuning (default: 200)"));
  add(app.add_option_function<uint32_t>(
      "--tune-sequences", [set](uint32_t value) { set().set_tune_sequences(value); },
      "Sequences of a step (default: 4)"));
  add(app.add_option_function<double>(
      "--tune-work-saved", [set](double value) { set().set_tune_work_saved(value); },
      "Share of the MLPs' work that tuning aims to save (default: 0.3)"));
}

void CalibrateCommand::PrintText(Session& session, const v1::Operation& operation,
                                 const v1::CalibrationDescription& calibration) const {
  const Terminal& terminal = session.terminal;
  if (operation.state() != v1::OPERATION_STATE_SUCCEEDED) {
    PrintFailure(session, operation, "calibration of " + OneLine(model));
    return;
  }
  terminal.out << terminal.Paint(kBold, "Calibration " + OneLine(operation.result())) << " of " << OneLine(model)
               << (no_activate ? ", not active" : ", now active") << " (" << HumanBytes(operation.result_bytes())
               << ")\n";
  if (calibration.layers_size() == 0) return;
  PrintLayerTable(terminal, {calibration.layers().begin(), calibration.layers().end()}, 2);
  if (calibration.operating_points_size() > 0) terminal.out << "\n";
  PrintOperatingPoints(terminal, calibration);
}

absl::StatusOr<int> CalibrateCommand::Run(Session& session, std::istream& in) const {
  const auto uploaded = UploadFile(session, corpus, in);
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
    if (!session.json) PrintDetached(session, operation->name());
  } else {
    auto watched = WatchToEnd(session, operation->name());
    if (!watched.ok()) return watched.status();
    interrupted = watched->interrupted;
    operation = std::move(watched->operation);
  }
  const bool succeeded = operation->state() == v1::OPERATION_STATE_SUCCEEDED;
  v1::CalibrationDescription calibration;
  if (succeeded) calibration = FetchCalibration(session, model, operation->result());
  json["operation"] = ToJson(*operation);
  json["layers"] = Json::array();
  json["operating_points"] = Json::array();
  for (const auto& layer : calibration.layers()) json["layers"].push_back(ToJson(layer));
  for (const auto& point : calibration.operating_points()) json["operating_points"].push_back(ToJson(point));
  if (session.json) {
    session.Print(json);
  } else if (!detach) {
    PrintText(session, *operation, calibration);
  }
  if (interrupted) return kExitInterrupted;
  return succeeded || detach ? kExitOk : kExitFailed;
}

}  // namespace

void AddCalibrate(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<CalibrateCommand>();
  CLI::App* sub = app.add_subcommand("calibrate", "Fit surrogates and gates and find consensus neurons, from a text");
  command->Declare(*sub);
  sub->footer(kCalibrateExamples);
  sub->callback(
      [command, &in, &action] { action = [command, &in](Session& session) { return command->Run(session, in); }; });
}

}  // namespace gatehouse::cli
