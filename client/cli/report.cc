#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/time/clock.h"
#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "client/cli/session.h"
#include "client/page/report_page.h"
#include "client/page/trace_section.h"
#include "client/utf8.h"

namespace gatehouse::cli {
namespace {

constexpr char kReportExamples[] =
    R"(One page shows the text with each token coloured by its nonlinearity at a layer, all layers, which
consensus and exception neurons fire, and what each gate would say at a threshold you can move; beside
it, the perplexity measured at a few thresholds. The page is one file that loads nothing else.

Examples:
  gatehouse report -m novella-gpt2-7m "The captain of the ship was an old man."
  gatehouse report -m novella-gpt2-7m --file chapter.txt --out chapter.html
  gatehouse report -m novella-gpt2-7m "Call me Ishmael." --json | jq '.sections[0].tokens[2]')";

constexpr char kNonlinearityNote[] =
    "Nonlinearity is the norm of what a linear surrogate leaves of an MLP's output, coloured by where it lies among "
    "the calibration's tokens.";
constexpr char kGateNote[] =
    "A gate says p, the probability that the linear surrogate is fine for the token; the token goes linear where p "
    "exceeds the threshold. The first positions of a window always run in full.";

constexpr char kDefaultFile[] = "gatehouse-report.html";

// A run whose perplexity was measured.
struct Measured {
  bool all_layers = false;
  double threshold = 0;  // 1: the full model; 0: all of those layers linear
  v1::ScoreSummary summary;
};

struct ReportCommand {
  std::string model;
  InputFlags input{{.text = "TEXT"}};
  std::string out;
  std::string thresholds = "0.9,0.75,0.5,0.25,0.1";

  void Declare(CLI::App& app);
  v1::ScoreRequest Build(std::istream& in) const;
  absl::StatusOr<int> Run(Session& session, v1::ScoreRequest request) const;
  absl::StatusOr<std::vector<Measured>> Measure(Session& session, v1::ScoreRequest request,
                                                const v1::CalibrationDescription& calibration,
                                                const v1::ScoreSummary& full) const;
};

void ReportCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  input.Add(app);
  app.add_option("--thresholds", thresholds, "Thresholds at which perplexity is measured, each in [0, 1]")
      ->type_name("LIST")
      ->capture_default_str()
      ->group("Gating");
  app.add_option("-o,--out", out,
                 std::string("The page to write (default: ") + kDefaultFile + "; with --json, none unless given)")
      ->type_name("FILE")
      ->group("Output");
}

v1::ScoreRequest ReportCommand::Build(std::istream& in) const {
  OrUsageError("--thresholds", ParseNumbers(thresholds));
  v1::ScoreRequest request;
  request.set_model(model);
  *request.mutable_input() = input.BuildOne(in);
  return request;
}

// The layers of the calibration: all, or those it calls gateable.
std::vector<uint32_t> LayersOf(const v1::CalibrationDescription& calibration, bool all) {
  std::vector<uint32_t> layers;
  for (const v1::LayerCalibration& layer : calibration.layers()) {
    if (all || layer.gateable()) layers.push_back(layer.layer());
  }
  return layers;
}

absl::StatusOr<std::vector<Measured>> ReportCommand::Measure(Session& session, v1::ScoreRequest request,
                                                             const v1::CalibrationDescription& calibration,
                                                             const v1::ScoreSummary& full) const {
  std::vector<double> steps = *ParseNumbers(thresholds);
  steps.push_back(0);
  std::sort(steps.begin(), steps.end(), std::greater<>());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  ProgressBar progress(session.terminal);
  std::vector<Measured> runs;
  request.set_summary_only(true);
  request.clear_records();
  const size_t total = 2 * steps.size();
  for (const bool all : {false, true}) {
    const std::vector<uint32_t> layers = LayersOf(calibration, all);
    if (layers.empty()) continue;
    runs.push_back({all, 1, full});
    for (const double threshold : steps) {
      if (threshold == 1) continue;
      progress.Update(static_cast<double>(runs.size()) / static_cast<double>(total + 2), "measuring perplexity",
                      absl::Now());
      v1::GatingPolicy& gating = *request.mutable_gating();
      gating.set_mode(threshold == 0 ? v1::GatingPolicy::MODE_LINEAR : v1::GatingPolicy::MODE_GATED);
      threshold == 0 ? gating.clear_threshold() : gating.set_threshold(static_cast<float>(threshold));
      *gating.mutable_layers() = {layers.begin(), layers.end()};
      auto summary = session.client.Score(request, {}, session.call);
      if (!summary.ok()) return summary.status();
      runs.push_back({all, threshold, *std::move(summary)});
    }
  }
  return runs;
}

const char* LayersName(const Measured& run) { return run.all_layers ? "all layers" : "gateable layers"; }

Json MeasuredJson(const std::vector<Measured>& runs) {
  Json json = Json::array();
  for (const Measured& run : runs) {
    json.push_back({{"layers", run.all_layers ? "all" : "gateable"},
                    {"threshold", Number(run.threshold)},
                    {"perplexity", Number(run.summary.perplexity())},
                    {"linear_fraction", Number(run.summary.routing().linear_fraction())},
                    {"mlp_work_saved", Number(run.summary.routing().mlp_work_saved())}});
  }
  return json;
}

Json MeasuredTable(const std::vector<Measured>& runs) {
  const auto column = [&](const char* name, const char* description, const auto& value) {
    Json values = Json::array();
    for (const Measured& run : runs) values.push_back(value(run));
    return Json{{"name", name}, {"description", description}, {"values", std::move(values)}};
  };
  const double full = runs.empty() ? 0 : runs.front().summary.perplexity();
  return {
      {"name", "perplexity"},
      {"title", "Perplexity measured at a few thresholds"},
      {"description", "Each row is a run of its own, in which every layer reads what the gated layers before it made."},
      {"columns",
       Json::array(
           {column("layers", "the layers that were gated", [](const Measured& run) { return LayersName(run); }),
            column("threshold", "a token goes linear where p exceeds it; at 1 none does, at 0 all do",
                   [](const Measured& run) { return Number(run.threshold); }),
            column("perplexity", "of the text", [](const Measured& run) { return Number(run.summary.perplexity()); }),
            column("change", "relative change of perplexity from the full model",
                   [&](const Measured& run) { return Number(run.summary.perplexity() / full - 1); }),
            column("linear", "share of all token × layer decisions that went linear",
                   [](const Measured& run) { return Number(run.summary.routing().linear_fraction()); }),
            column("work_saved", "share of the MLPs' multiplications that was not done",
                   [](const Measured& run) { return Number(run.summary.routing().mlp_work_saved()); })})}};
}

// The first words of the text.
std::string Beginning(const Json& tokens) {
  std::string text;
  for (const Json& token : tokens) {
    text += token["text"].get<std::string>();
    if (text.size() > 200) break;
  }
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return Truncate(text, 48);
}

Json ReportJson(const v1::DescribeModelResponse& model, Json tokens, const v1::ScoreSummary& full,
                const std::vector<Measured>& runs) {
  const size_t gateable = LayersOf(model.calibration(), false).size();
  const std::string perplexity =
      full.has_perplexity() ? ", perplexity " + Fixed(full.perplexity(), 3) + " in full" : "";
  const std::string title = "“" + Beginning(tokens) + "”, token by token";
  Json trace = client::TraceSection(model);
  trace["tokens"] = std::move(tokens);
  trace["measured"] = MeasuredJson(runs);
  Json sections = Json::array(), tables = Json::array();
  sections.push_back(std::move(trace));
  if (!runs.empty()) tables.push_back(MeasuredTable(runs));
  const auto setting = [](const char* name, const std::string& value) {
    return Json{{"name", name}, {"value", value}};
  };
  const v1::CalibrationDescription& calibration = model.calibration();
  return {{"kind", "trace"},
          {"title", title},
          {"summary", Count(full.tokens(), "token") + " in " + Count(model.layers(), "layer") + perplexity + "; " +
                          Count(gateable, "layer") + " gateable."},
          {"model", model.name()},
          {"model_fingerprint", model.fingerprint()},
          {"dtype", model.dtype()},
          {"created", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone())},
          {"corpora", Json::array()},
          {"settings", Json::array({setting("calibration", calibration.name()),
                                    setting("calibration_fingerprint", calibration.fingerprint()),
                                    setting("sink_positions", std::to_string(calibration.sink_positions())),
                                    setting("windows", std::to_string(full.windows()))})},
          {"notes", Json::array({kNonlinearityNote, kGateNote})},
          {"tables", std::move(tables)},
          {"plots", Json::array()},
          {"sections", std::move(sections)}};
}

absl::StatusOr<int> ReportCommand::Run(Session& session, v1::ScoreRequest request) const {
  const std::string file = out.empty() && !session.json ? kDefaultFile : out;
  if (!file.empty()) {
    if (absl::Status status = CheckWritable(file); !status.ok()) return status;
  }
  const auto described = session.client.DescribeModel(model, session.call);
  if (!described.ok()) return described.status();
  // The one described, though another may be selected meanwhile.
  request.mutable_gating()->set_calibration(described->calibration().name());
  *request.mutable_records() = client::TraceRecords();
  Json tokens = Json::array();
  client::TraceTokens trace;
  const auto full = session.client.Score(
      request,
      [&](const v1::ScoredTokens& more) {
        for (const v1::ScoredToken& token : more.tokens()) tokens.push_back(trace.Next(token));
        return true;
      },
      session.call);
  if (!full.ok()) return full.status();
  std::vector<Measured> runs;
  if (full->has_perplexity()) {
    auto measured = Measure(session, request, described->calibration(), *full);
    if (!measured.ok()) return measured.status();
    runs = *std::move(measured);
  }
  const Json report = ReportJson(*described, std::move(tokens), *full, runs);
  if (!file.empty()) {
    if (absl::Status status = WriteToFile(file, client::RenderReportPage(report.dump())); !status.ok()) return status;
  }
  if (session.json) {
    session.Print(report);
  } else {
    session.terminal.out << OneLine(file) << ": " << report["summary"].get<std::string>() << "\n";
  }
  return kExitOk;
}

}  // namespace

void AddReport(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* sub = app.add_subcommand("report", "Write a page that shows a text token by token");
  command->Declare(*sub);
  sub->footer(kReportExamples);
  sub->callback([command, &in, &action] {
    action = [command, request = command->Build(in)](Session& session) { return command->Run(session, request); };
  });
}

}  // namespace gatehouse::cli
