#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "client/cli/render.h"
#include "client/cli/report_view.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kExamples[] =
    R"(Uploads the texts, starts the operation, watches it, and shows its report.  Ctrl-C asks the server to
cancel it; with --detach it goes on, and `gatehouse operations report NAME` shows the report later.

Examples:
  gatehouse experiment cost -m novella-gpt2-7m --corpus novel.txt --html cost.html
  gatehouse experiment gates -m novella-gpt2-7m --corpus novel.txt --layers 3-5 --thresholds 0.5,0.7,0.9
  gatehouse experiment no-fly -m novella-gpt2-7m --corpus novel.txt --corpus news.txt --npz no-fly.npz
  gatehouse experiment train -m novella-gpt2-7m --corpus novel.txt --schedule two-phase --save-model --detach
  gatehouse experiment train -m novella-gpt2-7m --corpus novel.txt --schedule two-phase --resume NAME)";

// One verb of `gatehouse experiment`: its flags, and what they ask for.
struct ExperimentCommand {
  std::string model;
  std::vector<std::string> corpora;
  v1::ExperimentSpec spec;
  ReportFlags report;
  bool detach = false;

  void Declare(CLI::App& app);
  void DeclareMethod(CLI::App& app);
  void DeclareGates(CLI::App& app);
  void DeclareNoFly(CLI::App& app);
  void DeclareTraining(CLI::App& app);
  absl::StatusOr<int> Run(Session& session, std::istream& in) const;
  absl::StatusOr<int> Finish(Session& session, const Watched& watched, Json json) const;
};

// Declares flags that set fields of `message` (of this command, so it outlives the parsing).
template <typename Message>
struct FieldFlags {
  CLI::App& app;
  Message& message;
  const char* group;

  template <typename Value>
  CLI::Option* Add(const char* flag, void (Message::*set)(Value), const char* help) const {
    return app
        .add_option_function<Value>(
            flag, [this_message = &message, set](const Value& value) { (this_message->*set)(value); }, help)
        ->group(group);
  }
};

void ExperimentCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  AddRepeatable(app, "--corpus", corpora, "A text to measure on, in UTF-8; - reads standard input; repeatable")
      ->type_name("FILE")
      ->required();
  app.add_option_function<std::string>(
         "--layers",
         [this](const std::string& text) {
           for (const uint32_t layer : OrUsageError("--layers", ParseLayers(text))) spec.add_layers(layer);
         },
         "Layers, such as 3,5-8 (default: all)")
      ->type_name("LAYERS");
  CLI::Option* const detached = app.add_flag("--detach", detach, "Start it and leave; it goes on at the server");
  report.Add(app);
  detached->excludes("--html")->excludes("--npz");
  DeclareMethod(app);
}

void ExperimentCommand::DeclareMethod(CLI::App& app) {
  const FieldFlags<v1::ExperimentSpec> flags{app, spec, "Method"};
  using Spec = v1::ExperimentSpec;
  flags.Add("--fit-tokens", &Spec::set_fit_tokens, "Tokens for the surrogates (default: 10000)");
  flags.Add("--gate-tokens", &Spec::set_gate_tokens, "Tokens for gates (default: 25000)");
  flags.Add("--select-tokens", &Spec::set_select_tokens, "Tokens for choices (default: 5000)");
  flags.Add("--report-tokens", &Spec::set_report_tokens, "Tokens for the figures reported (default: 5000)");
  flags.Add("--window-tokens", &Spec::set_window_tokens, "Tokens of one block (default: 512, or the context)");
  flags.Add("--sink-positions", &Spec::set_sink_positions, "First positions that always run in full (default: 4)");
  flags.Add("--ridge", &Spec::set_ridge, "Ridge strength of the surrogates (default: 0.01)");
  flags.Add("--bootstrap-resamples", &Spec::set_bootstrap_resamples,
            "Resamples behind every interval (default: 10000)");
  flags.Add("--seed", &Spec::set_seed, "Seed (default: 0)");
}

void ExperimentCommand::DeclareGates(CLI::App& app) {
  v1::GateSweep& method = *spec.mutable_gate_sweep();
  app.add_option_function<std::string>(
         "--thresholds",
         [&method](const std::string& text) {
           for (const double value : OrUsageError("--thresholds", ParseNumbers(text))) method.add_thresholds(value);
         },
         "Thresholds in [0, 1] (default: 0.1 to 0.9)")
      ->type_name("LIST")
      ->group("Method");
  app.add_option_function<std::string>(
         "--bottlenecks",
         [&method](const std::string& text) {
           for (const uint32_t b : OrUsageError("--bottlenecks", ParseOrder(text))) method.add_bottlenecks(b);
         },
         "b, for gates on a PCA to 2b dimensions (default: 1,3,6)")
      ->type_name("LIST")
      ->group("Method");
}

void ExperimentCommand::DeclareNoFly(CLI::App& app) {
  const FieldFlags<v1::NoFly> flags{app, *spec.mutable_no_fly(), "Method"};
  flags.Add("--least-mean", &v1::NoFly::set_least_mean,
            "Least mean change of cross-entropy of a listed token, in nats (default: 0.05)");
  flags.Add("--least-count", &v1::NoFly::set_least_count, "Least occurrences of a listed token (default: 10)");
  flags.Add("--least-positive", &v1::NoFly::set_least_positive,
            "Least share of its changes that are positive (default: 0.6)");
  flags.Add("--least-count-other", &v1::NoFly::set_least_count_other,
            "Least occurrences on the corpus that judges (default: 3)");
}

void ExperimentCommand::DeclareTraining(CLI::App& app) {
  using Training = v1::Training;
  Training& method = *spec.mutable_training();
  const FieldFlags<Training> flags{app, method, "Training"};
  app.add_option_function<std::string>(
         "--schedule",
         [&method](const std::string& name) {
           method.set_schedule(name == "two-phase" ? Training::SCHEDULE_TWO_PHASE
                               : name == "routing" ? Training::SCHEDULE_ROUTING
                                                   : Training::SCHEDULE_PROGRESSIVE);
         },
         "progressive: replace layers one after another; two-phase: linearize, then train gates; routing: train with "
         "gates on (default: progressive)")
      ->check(CLI::IsMember({"progressive", "two-phase", "routing"}))
      ->type_name("SCHEDULE")
      ->group("Training");
  app.add_option_function<std::string>(
         "--order",
         [&method](const std::string& text) {
           for (const uint32_t layer : OrUsageError("--order", ParseOrder(text))) method.add_order(layer);
         },
         "The layers to replace, in order, such as 4,3,5 (default: middle layers outwards, half of them)")
      ->type_name("LAYERS")
      ->group("Training");
  flags.Add("--steps-per-layer", &Training::set_steps_per_layer, "Steps after each layer (default: 50)");
  flags.Add("--final-steps", &Training::set_final_steps, "Steps at the end (default: 100)");
  flags.Add("--batch-sequences", &Training::set_batch_sequences, "Sequences of a step (default: 4)");
  flags.Add("--learning-rate", &Training::set_learning_rate, "Default: 5e-6 (progressive) or 2e-5");
  flags.Add("--weight-decay", &Training::set_weight_decay, "Default: 0.01");
  flags.Add("--gradient-clip", &Training::set_gradient_clip, "Largest norm of the gradient (default: 1)");
  flags.Add("--gate-learning-rate", &Training::set_gate_learning_rate, "Default: 0.001");
  flags.Add("--gate-pressure", &Training::set_gate_pressure, "Weight of the pressure toward linear (default: 0.05)");
  flags.Add("--evaluate-every", &Training::set_evaluate_every, "Steps between evaluations (default: 25)");
  app.add_flag_callback(
         "--save-model", [&method] { method.set_save_model(true); },
         "Keep the trained weights, as a model directory among the operation's files")
      ->group("Training");
  app.add_option_function<std::string>(
         "--resume", [this](const std::string& name) { spec.set_resume(name); },
         "Go on from the last checkpoint of a training that was cut short, told the same otherwise")
      ->type_name("NAME")
      ->group("Training");
}

absl::StatusOr<int> ExperimentCommand::Run(Session& session, std::istream& in) const {
  if (std::count(corpora.begin(), corpora.end(), "-") > 1) {
    return absl::InvalidArgumentError("standard input can be read once: give --corpus - once");
  }
  v1::StartOperationRequest request;
  request.set_model(model);
  *request.mutable_experiment() = spec;
  Json json = {{"corpora", Json::array()}};
  for (const std::string& path : corpora) {
    const auto uploaded = UploadFile(session, path, in);
    if (!uploaded.ok()) return uploaded.status();
    request.mutable_experiment()->add_corpora(uploaded->corpus());
    json["corpora"].push_back({{"name", uploaded->corpus()}, {"size_bytes", uploaded->size_bytes()}});
  }
  const auto operation = session.client.StartOperation(request, session.call);
  if (!operation.ok()) return operation.status();
  if (detach) {
    json["operation"] = ToJson(*operation);
    json["report"] = Json();
    if (session.json) {
      session.Print(json);
    } else {
      PrintDetached(session, operation->name());
    }
    return kExitOk;
  }
  const auto watched = WatchToEnd(session, operation->name());
  if (!watched.ok()) return watched.status();
  return Finish(session, *watched, std::move(json));
}

absl::StatusOr<int> ExperimentCommand::Finish(Session& session, const Watched& watched, Json json) const {
  const v1::Operation& operation = watched.operation;
  const bool succeeded = operation.state() == v1::OPERATION_STATE_SUCCEEDED;
  json["operation"] = ToJson(operation);
  json["report"] = Json();
  if (succeeded) {
    const auto found = TakeReport(session, operation.name(), report);
    if (!found.ok()) return found.status();
    json["report"] = ToJson(*found);
    if (!session.json) PrintReport(session.terminal, *found, report.rows);
  }
  if (session.json) {
    session.Print(json);
  } else if (!succeeded) {
    PrintFailure(session, operation, "the experiment");
  }
  if (!session.json) session.terminal.err << operation.name() << "\n";
  if (watched.interrupted) return kExitInterrupted;
  return succeeded ? kExitOk : kExitFailed;
}

}  // namespace

void AddExperiment(CLI::App& app, std::istream& in, Action& action) {
  CLI::App* sub = app.add_subcommand("experiment", "Run a method of analysis on texts and report what it finds");
  sub->footer(kExamples);
  sub->require_subcommand(1);
  // Declares `experiment VERB`; `declare` adds what is the method's own.
  const auto add = [&](const char* verb, const char* help, auto declare) {
    auto command = std::make_shared<ExperimentCommand>();
    CLI::App* verb_sub = sub->add_subcommand(verb, help);
    verb_sub->fallthrough();
    command->Declare(*verb_sub);
    declare(*command, *verb_sub);
    verb_sub->callback(
        [command, &in, &action] { action = [command, &in](Session& session) { return command->Run(session, in); }; });
  };
  add("cost", "What replacing each layer's MLP by a linear map costs",
      [](ExperimentCommand& command, CLI::App&) { command.spec.mutable_linearization_cost(); });
  add("gates", "Gates of several kinds over a sweep of thresholds",
      [](ExperimentCommand& command, CLI::App& verb) { command.DeclareGates(verb); });
  add("routability", "What of a token, its identity or its context, decides whether it may go linear",
      [](ExperimentCommand& command, CLI::App&) { command.spec.mutable_routability(); });
  add("no-fly", "Tokens that must not go linear, and whether other texts agree; two texts or more",
      [](ExperimentCommand& command, CLI::App& verb) { command.DeclareNoFly(verb); });
  add("train", "Fine-tune while MLPs are replaced or routed, beside a control",
      [](ExperimentCommand& command, CLI::App& verb) { command.DeclareTraining(verb); });
}

}  // namespace gatehouse::cli
