#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "client/cli/experiment_inputs.h"
#include "client/cli/experiment_suite.h"
#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "client/cli/render.h"
#include "client/cli/report_view.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kExperimentExamples[] =
    R"(Uploads the texts, starts the operation, watches it, and shows its report.  Ctrl-C asks the server to
cancel it; with --detach it goes on, and `gatehouse operations report NAME` shows the report later.

Examples:
  gatehouse experiment cost -m novella-gpt2-7m --corpus novel.txt --html cost.html
  gatehouse experiment gates -m novella-gpt2-7m --corpus novel.txt --layers 3-5 --thresholds 0.5,0.7,0.9
  gatehouse experiment no-fly -m novella-gpt2-7m --corpus novel.txt --corpus news.txt --npz no-fly.npz
  gatehouse experiment train -m novella-gpt2-7m --corpus novel.txt --schedule two-phase --save-model --detach
  gatehouse experiment train -m novella-gpt2-7m --corpus novel.txt --schedule two-phase --resume NAME)";

// One verb of `gatehouse experiment`: its flags, and what they ask for.
struct ExperimentCommand : ExperimentInputs {
  ReportFlags report;
  bool detach = false;

  void Declare(CLI::App& app);
  void DeclareGates(CLI::App& app);
  void DeclareNoFly(CLI::App& app);
  void DeclareTraining(CLI::App& app);
  void DeclareNonlinearity(CLI::App& app);
  void DeclarePolynomial(CLI::App& app);
  absl::StatusOr<int> Run(Session& session, std::istream& in) const;
  absl::StatusOr<int> Finish(Session& session, const Watched& watched, Json json) const;
};

void ExperimentCommand::Declare(CLI::App& app) {
  DeclareInputs(app);
  CLI::Option* const detached = app.add_flag("--detach", detach, "Start it and leave; it goes on at the server");
  report.Add(app);
  detached->excludes("--html")->excludes("--npz");
  DeclareMethod(app);
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
           for (const uint32_t b : OrUsageError("--bottlenecks", ParseCounts(text))) method.add_bottlenecks(b);
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

void ExperimentCommand::DeclareNonlinearity(CLI::App& app) {
  const FieldFlags<v1::Nonlinearity> flags{app, *spec.mutable_nonlinearity(), "Method"};
  flags.Add("--clusters", &v1::Nonlinearity::set_clusters, "Clusters of the most nonlinear tokens (default: 8)");
}

void ExperimentCommand::DeclarePolynomial(CLI::App& app) {
  v1::PolynomialProbe& method = *spec.mutable_polynomial_probe();
  app.add_option_function<std::string>(
         "--degrees",
         [&method](const std::string& text) {
           for (const uint32_t degree : OrUsageError("--degrees", ParseCounts(text))) method.add_degrees(degree);
         },
         "Degrees, each in [1, 7] (default: 2 to 7)")
      ->type_name("LIST")
      ->group("Method");
  const FieldFlags<v1::PolynomialProbe> flags{app, method, "Method"};
  flags.Add("--components", &v1::PolynomialProbe::set_components, "Dimensions of the PCA (default: 50)");
  flags.Add("--probe-ridge", &v1::PolynomialProbe::set_ridge, "Ridge strength of the probe (default: 1)");
  flags.Add("--high-share", &v1::PolynomialProbe::set_high_share,
            "Share of the tokens, the most nonlinear, that are probed (default: 0.1)");
}

// --max-consensus, for the methods of consensus.
template <typename Message>
void DeclareConsensus(CLI::App& app, Message& method) {
  FieldFlags<Message>{app, method, "Method"}.Add("--max-consensus", &Message::set_max_consensus,
                                                 "At most this many consensus neurons a layer (default: 7)");
}

absl::StatusOr<int> ExperimentCommand::Run(Session& session, std::istream& in) const {
  if (absl::Status status = CheckOutputs(report); !status.ok()) return status;
  const auto uploaded = Upload(session, in);
  if (!uploaded.ok()) return uploaded.status();
  Json json = {{"corpora", uploaded->corpora}};
  const auto operation = session.client.StartOperation(uploaded->request, session.call);
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
    if (!found.ok()) {
      session.terminal.err << "The report stays at the server: gatehouse operations report " << operation.name()
                           << "\n";
      return found.status();
    }
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
  sub->footer(kExperimentExamples);
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
  add("nonlinearity", "How nonlinear each layer is, token by token, and what the most nonlinear tokens have in common",
      [](ExperimentCommand& command, CLI::App& verb) { command.DeclareNonlinearity(verb); });
  add("polynomial", "How much of what a linear map leaves over a polynomial explains",
      [](ExperimentCommand& command, CLI::App& verb) { command.DeclarePolynomial(verb); });
  add("consensus", "Neurons that decide when a layer is nonlinear, beside what chance finds",
      [](ExperimentCommand& command, CLI::App& verb) { DeclareConsensus(verb, *command.spec.mutable_consensus()); });
  add("ablation", "What zeroing each layer's MLP costs, by how many consensus neurons fire",
      [](ExperimentCommand& command, CLI::App& verb) { DeclareConsensus(verb, *command.spec.mutable_ablation()); });
  add("quorum", "Routing by the consensus neurons themselves, beside gates of the same work",
      [](ExperimentCommand& command, CLI::App& verb) { DeclareConsensus(verb, *command.spec.mutable_quorum()); });
  AddExperimentSuite(*sub, in, action);
}

}  // namespace gatehouse::cli
