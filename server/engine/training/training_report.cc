#include "server/engine/training/training_report.h"

#include <ATen/TensorOperators.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/mlp_work.h"
#include "server/engine/training/gated_forward.h"

namespace gatehouse {
namespace {

using Mode = TrainableModel::Mode;

// "two-phase, soft gates" → "two_phase_soft_gates".
std::string Identifier(std::string_view name) {
  std::string identifier;
  for (const char c : name) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      identifier += c;
    } else if (!identifier.ends_with('_')) {
      identifier += '_';
    }
  }
  return identifier;
}

// A table that is filled row by row.
class TableBuilder {
 public:
  TableBuilder(std::string name, std::string title, std::string description)
      : table_{std::move(name), std::move(title), std::move(description), {}} {}

  TableBuilder& Text(std::string name, std::string description) {
    table_.columns.push_back({std::move(name), std::move(description), std::vector<std::string>()});
    return *this;
  }
  TableBuilder& Number(std::string name, std::string description) {
    table_.columns.push_back({std::move(name), std::move(description), std::vector<double>()});
    return *this;
  }
  // One cell a column, of the column's kind.
  void Row(std::vector<std::variant<double, std::string>> cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      std::visit(
          [&](auto& cell) {
            using Cell = std::decay_t<decltype(cell)>;
            std::get<std::vector<Cell>>(table_.columns[i].cells).push_back(std::move(cell));
          },
          cells[i]);
    }
  }
  ReportTable Take() { return std::move(table_); }

 private:
  ReportTable table_;
};

// The last point of a step with at most `stage` stages begun; null where the step was not
// measured.
const CurvePoint* PointAt(const TrainingProgress& progress, int64_t step, int stage) {
  const CurvePoint* found = nullptr;
  for (const CurvePoint& point : progress.curve) {
    if (point.step == step && point.stage <= stage) found = &point;
  }
  return found;
}

double PerplexityOf(const CurvePoint* point) { return point == nullptr ? kNone : point->perplexity; }

double Relative(double value, double base) { return value / base - 1; }

void AddCurve(TableBuilder& table, const std::string& arm, const TrainingOutcome& outcome,
              const TrainingProgress& progress) {
  const double tokens = static_cast<double>(outcome.method.batch_sequences) * outcome.text.window;
  const double start = progress.curve.front().perplexity;
  for (const CurvePoint& point : progress.curve) {
    const double step = static_cast<double>(point.step);
    table.Row({arm, step, step * tokens, point.perplexity, Relative(point.perplexity, start), point.linear_fraction,
               point.training_loss, point.gradient_norm});
  }
}

ReportTable CurveTable(const TrainingOutcome& outcome) {
  TableBuilder table("curve", "Training curves",
                     "Perplexity on held-out text on the way, of the run and of the control with as many steps on the "
                     "same tokens and nothing replaced. Gates decide hard. Two rows of one step: before and after a "
                     "change.");
  table.Text("arm", "the run or the control")
      .Number("step", "optimizer steps done")
      .Number("tokens", "tokens seen: steps × sequences × window, repetitions included")
      .Number("perplexity", "on the report split")
      .Number("change", "relative to the arm's first row")
      .Number("linear_fraction", "share of tokens that went linear, over all layers and tokens")
      .Number("training_loss", "mean over the steps since the row before, nats, as the model ran in training")
      .Number("gradient_norm", "mean over the same steps, before clipping");
  AddCurve(table, outcome.plan.arm, outcome, outcome.run_progress);
  AddCurve(table, "control", outcome, outcome.control_progress);
  return table.Take();
}

ReportTable StagesTable(const TrainingOutcome& outcome) {
  TableBuilder table("stages", "Stages", "What each stage changed and what training made of it, beside the control.");
  table.Text("stage", "what begins")
      .Text("layers", "the layers it changes")
      .Number("first_step", "before this step")
      .Number("steps", "of this stage")
      .Number("perplexity_before", "on the report split")
      .Number("perplexity_changed", "after the change, before any step")
      .Number("perplexity_end", "at the end of the stage")
      .Number("control_end", "the control's at the same step")
      .Number("against_control", "relative difference to the control at the end of the stage");
  const auto& stages = outcome.plan.stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    const int64_t first = stages[i].first_step;
    const int64_t end = i + 1 < stages.size() ? stages[i + 1].first_step : outcome.plan.steps;
    const int begun = static_cast<int>(i) + 1;
    const double last = PerplexityOf(PointAt(outcome.run_progress, end, begun));
    const double control = PerplexityOf(PointAt(outcome.control_progress, end, begun));
    table.Row({stages[i].name, absl::StrJoin(stages[i].layers, ", "), static_cast<double>(first),
               static_cast<double>(end - first), PerplexityOf(PointAt(outcome.run_progress, first, begun - 1)),
               PerplexityOf(PointAt(outcome.run_progress, first, begun)), last, control, Relative(last, control)});
  }
  return table.Take();
}

ReportTable LayersTable(const TrainingOutcome& outcome) {
  TableBuilder table("layers", "Layers", "What became of each layer.");
  table.Number("layer", "from 0")
      .Text("mlp", "full, linear (but for sinks), or gated")
      .Number("surrogate_r2", "of the surrogate when it was fitted, on the report split without sinks")
      .Number("linear_fraction", "share of all tokens of the report split that went linear at the end");
  const Evaluation& last = outcome.run.evaluations.front();
  const double tokens = static_cast<double>(outcome.text.report.size()) * outcome.text.window;
  for (int layer = 0; layer < outcome.context.model.config.layers; ++layer) {
    double r2 = kNone;
    for (const SurrogateFit& fit : outcome.run_progress.fits) {
      if (fit.layer == layer) r2 = fit.r2;
    }
    const Mode mode = outcome.run.modes[layer];
    const std::string name = mode == Mode::kFull ? "full" : mode == Mode::kLinear ? "linear" : "gated";
    table.Row({static_cast<double>(layer), name, r2, static_cast<double>(last.linear_tokens[layer]) / tokens});
  }
  return table.Take();
}

std::vector<const TrainingArm*> ArmsOf(const TrainingOutcome& outcome) {
  std::vector<const TrainingArm*> arms = {&outcome.untouched, &outcome.control};
  for (const TrainingArm& other : outcome.others) arms.push_back(&other);
  arms.push_back(&outcome.run);
  return arms;
}

ReportTable FinalTable(const TrainingOutcome& outcome) {
  TableBuilder table("final", "Final figures",
                     "Perplexity on held-out text at the end. Intervals are 95 %, by a paired block bootstrap over "
                     "blocks.");
  table.Text("corpus", "the first is the one trained on; of it, the report split")
      .Text("arm", "untouched: the model before training; control: as many steps, nothing replaced")
      .Number("perplexity", "over the predicted tokens of all blocks")
      .Number("change", "relative change of perplexity against the untouched model")
      .Number("change_low", "95 %")
      .Number("change_high", "95 %")
      .Number("against_control", "relative change of perplexity against the control")
      .Number("against_control_low", "95 %")
      .Number("against_control_high", "95 %")
      .Number("work_saved", "share of the MLPs' multiplications not done, over all layers and tokens")
      .Number("linear_fraction", "share of tokens that went linear, over all layers and tokens");
  for (size_t corpus = 0; corpus < outcome.corpora.size(); ++corpus) {
    for (const TrainingArm* arm : ArmsOf(outcome)) {
      const Interval change = ChangeBetween(outcome, outcome.untouched, *arm, corpus);
      const Interval against = ChangeBetween(outcome, outcome.control, *arm, corpus);
      table.Row({outcome.corpora[corpus].name, arm->name, arm->evaluations[corpus].Perplexity(), change.estimate,
                 change.low, change.high, against.estimate, against.low, against.high,
                 arm->WorkSaved(outcome.context.model.config, outcome.context.options.sink_positions, corpus),
                 arm->LinearFraction(corpus)});
    }
  }
  return table.Take();
}

ReportPlot Plot(ReportPlot::Kind kind, std::string title, std::string caption, std::string table, std::string x,
                std::string y, std::string series = "") {
  ReportPlot plot;
  plot.kind = kind;
  plot.title = std::move(title);
  plot.caption = std::move(caption);
  plot.table = std::move(table);
  plot.x = std::move(x);
  plot.y = std::move(y);
  plot.series = std::move(series);
  return plot;
}

std::vector<ReportPlot> Plots() {
  using Kind = ReportPlot::Kind;
  std::vector<ReportPlot> plots = {
      Plot(Kind::kLine, "Perplexity on held-out text",
           "The run beside the control: the same tokens and steps with nothing replaced.", "curve", "step",
           "perplexity", "arm"),
      Plot(Kind::kBar, "Change of perplexity against the untouched model",
           "With 95 % intervals. What the run is worth shows against the control.", "final", "arm", "change", "corpus"),
      Plot(Kind::kLine, "Tokens that go linear", "Share over all layers and tokens of held-out text.", "curve", "step",
           "linear_fraction", "arm"),
      Plot(Kind::kBar, "Tokens that go linear at the end, by layer", "Share of the tokens of held-out text.", "layers",
           "layer", "linear_fraction")};
  plots[1].low = "change_low";
  plots[1].high = "change_high";
  return plots;
}

void AddSettings(const TrainingOutcome& outcome, Report& report) {
  const TrainingMethod& method = outcome.method;
  const bool cosine = method.schedule != TrainingSchedule::kProgressive;
  const std::pair<std::string, std::string> settings[] = {
      {"order", absl::StrJoin(outcome.order, ", ")},
      {"steps", StrCat(outcome.plan.steps)},
      {"steps_per_layer", StrCat(method.steps_per_layer)},
      {"final_steps", StrCat(method.final_steps)},
      {"batch_sequences", StrCat(method.batch_sequences)},
      {"learning_rate", StrCat(BaseLearningRate(method), cosine ? ", cosine to 0" : ", constant")},
      {"optimizer", "AdamW, beta 0.9 and 0.999, epsilon 1e-8"},
      {"weight_decay", StrCat(method.weight_decay, ", of matrices and embeddings, not of biases, norms and gates")},
      {"gradient_clip", StrCat(method.gradient_clip, ", of the global norm")},
      {"gate_learning_rate", StrCat(method.gate_learning_rate)},
      {"gate_pressure", StrCat(method.gate_pressure, " nats, after the first ", 100 / kWarmUpParts,
                               " % of the steps in which gates learn")},
      {"evaluate_every", StrCat(method.evaluate_every)},
      {"training_text",
       StrCat(outcome.text.train.size() * outcome.text.window, " tokens: the corpus but for its report split")}};
  report.settings.insert(report.settings.end(), std::begin(settings), std::end(settings));
}

void AddNotes(const TrainingOutcome& outcome, Report& report) {
  const int64_t seen = outcome.plan.steps * outcome.method.batch_sequences * outcome.text.window;
  const int64_t text = static_cast<int64_t>(outcome.text.train.size()) * outcome.text.window;
  auto& notes = report.notes;
  notes.push_back(StrCat("Training saw ", seen, " tokens: ", outcome.plan.steps, " steps of ",
                         outcome.method.batch_sequences, " sequences of ", outcome.text.window, ". That is ",
                         Percent(static_cast<double>(seen) / static_cast<double>(text)), " of the training text of ",
                         text, " tokens; above 100 % it repeats."));
  notes.push_back(
      "The control saw the same tokens in the same order, with as many steps, and nothing replaced. A gain against the "
      "untouched model that the control has too is the text's and not the method's.");
  notes.push_back("Where a layer is linear its own MLP is frozen; it serves the sinks.");
  notes.push_back("The report split was never trained on, and nothing was chosen on it.");
  if (outcome.method.schedule == TrainingSchedule::kTwoPhase) {
    notes.push_back(
        "In the second phase only the gates learn; the control's weights go on learning, with a cosine over all "
        "steps.");
  }
  if (outcome.context.model.token_embedding.scalar_type() != at::kFloat) {
    notes.push_back("All arms, the untouched one too, ran in float32 on the weights that serve in another dtype.");
  }
}

std::string Title(TrainingSchedule schedule) {
  switch (schedule) {
    case TrainingSchedule::kProgressive:
      return "Progressive linearization with fine-tuning";
    case TrainingSchedule::kTwoPhase:
      return "Two-phase gating";
    case TrainingSchedule::kRouting:
      return "In-training routing";
  }
  return "Training";
}

std::string Summary(const TrainingOutcome& outcome) {
  const Interval change = ChangeBetween(outcome, outcome.untouched, outcome.run, 0);
  const Interval control = ChangeBetween(outcome, outcome.untouched, outcome.control, 0);
  const Interval against = ChangeBetween(outcome, outcome.control, outcome.run, 0);
  const char* verdict = against.low > 0    ? "The control is better."
                        : against.high < 0 ? "The run is better."
                                           : "The two cannot be told apart.";
  const double saved = outcome.run.WorkSaved(outcome.context.model.config, outcome.context.options.sink_positions, 0);
  return StrCat("After ", outcome.plan.steps, " steps on layers ", absl::StrJoin(outcome.order, ", "),
                " the run saves ", Percent(saved), " of the MLPs' work, and its perplexity on held-out text is ",
                SignedPercent(change),
                " against the untouched model. The control, with as many steps on the same tokens and nothing "
                "replaced, is at ",
                SignedPercent(control), ". Run against control: ", SignedPercent(against), ". ", verdict);
}

}  // namespace

double TrainingArm::WorkSaved(const ModelConfig& config, int sinks, size_t corpus) const {
  if (!routed) return 0;
  const Evaluation& evaluation = evaluations[corpus];
  const int64_t blocks = evaluation.cross_entropy.size(0), window = evaluation.cross_entropy.size(1) + 1;
  std::vector<LayerTraffic> traffic;
  for (int layer = 0; layer < config.layers; ++layer) {
    const int64_t linear = evaluation.linear_tokens[layer];
    traffic.push_back({.full = blocks * window - linear, .linear = linear});
    if (modes[layer] == Mode::kGated) traffic.back().gated = blocks * (window - sinks);
  }
  return MlpWorkSaved(WorkShape(config), traffic);
}

double TrainingArm::LinearFraction(size_t corpus) const {
  const Evaluation& evaluation = evaluations[corpus];
  const auto& linear = evaluation.linear_tokens;
  const int64_t tokens = evaluation.cross_entropy.size(0) * (evaluation.cross_entropy.size(1) + 1);
  return static_cast<double>(std::accumulate(linear.begin(), linear.end(), int64_t{0})) /
         static_cast<double>(tokens * static_cast<int64_t>(linear.size()));
}

Interval ChangeBetween(const TrainingOutcome& outcome, const TrainingArm& from, const TrainingArm& to, size_t corpus) {
  return BootstrapPerplexityChange(from.evaluations[corpus].cross_entropy, to.evaluations[corpus].cross_entropy,
                                   outcome.context.options.bootstrap_resamples, outcome.context.options.seed);
}

ExperimentResult ReportTraining(const TrainingOutcome& outcome) {
  ExperimentResult result;
  Report& report = result.report;
  report.title = Title(outcome.method.schedule);
  report.summary = Summary(outcome);
  DescribeProtocol(outcome.context, outcome.corpora, report);
  AddSettings(outcome, report);
  AddNotes(outcome, report);
  report.tables = {FinalTable(outcome), StagesTable(outcome), LayersTable(outcome), CurveTable(outcome)};
  report.plots = Plots();
  for (const TrainingArm* arm : ArmsOf(outcome)) {
    result.arrays.push_back(
        ArrayOf(StrCat("cross_entropy.", Identifier(arm->name)), arm->evaluations.front().cross_entropy));
  }
  return result;
}

}  // namespace gatehouse
