#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

// The linearization cost of a layer ("Half the Nonlinearity Is Wasted", methods A.2): the
// relative change of perplexity when its MLP is replaced by its surrogate for every token.

struct LayerCost {
  std::string corpus;
  int layer = 0;
  double full_perplexity = 0;
  Interval cost = {};             // sinks left alone
  Interval cost_with_sinks = {};  // fitted on them and replaced there too
  SurrogateR2 r2 = {};            // held out
  double improved = 0;            // share of tokens whose δCE is negative
  int64_t tokens = 0;             // predicted tokens of the report split

  double Nats() const { return std::log1p(cost.estimate); }
};

class CostStudy {
 public:
  explicit CostStudy(const ExperimentContext& context) : context_(context), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const double fit = static_cast<double>(plan.splits.fit.size()) * plan.splits.window;
    const double report = static_cast<double>(plan.splits.report.size()) * plan.splits.window;
    const int layers = context_.model.config.layers;
    double work = report * (layers + 1) + (fit + report) * PassingWork(layers_);
    for (const int layer : layers_) work += 2 * fit + report + 2 * report * (layers - layer);
    return work;
  }

  absl::Status Run(const CorpusPlan& plan, Work& work) {
    SplitStream fit = plan.Stream(context_.model, plan.splits.fit);
    SplitStream report = plan.Stream(context_.model, plan.splits.report);
    work.SetStage("perplexity of the full model");
    GH_RETURN_IF_ERROR(MeasureFullModel(report, work));
    SplitStream* const streams[] = {&fit, &report};
    std::vector<at::Tensor> deltas, deltas_with_sinks;
    GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("cost on ", plan.name), work, [&](int layer) {
      return Study(plan, layer, fit, report, work, deltas, deltas_with_sinks);
    }));
    const size_t number = ++corpora_;
    arrays_.push_back(ArrayOf(StrCat("delta_ce.", number), at::stack(deltas)));
    arrays_.push_back(ArrayOf(StrCat("delta_ce_with_sinks.", number), at::stack(deltas_with_sinks)));
    return absl::OkStatus();
  }

  ExperimentResult Finish(std::span<const CorpusPlan> plans) &&;

 private:
  absl::Status Study(const CorpusPlan& plan, int layer, const SplitStream& fit, const SplitStream& report, Work& work,
                     std::vector<at::Tensor>& deltas, std::vector<at::Tensor>& deltas_with_sinks) {
    const ModelWeights& model = context_.model;
    const ExperimentOptions& options = context_.options;
    const int sinks = options.sink_positions;
    GH_ASSIGN_OR_RETURN(const FittedMlp fitted, FitMlp(model, layer, fit, sinks, options.ridge, work));
    LayerCost row{.corpus = plan.name, .layer = layer};
    GH_ASSIGN_OR_RETURN(row.r2, MeasureR2(model, layer, fitted, report, sinks, work));

    const at::Tensor& full = report.full_cross_entropy();
    GH_ASSIGN_OR_RETURN(const at::Tensor linear,
                        LinearCrossEntropy(model, layer, report, fitted.surrogate, sinks, work));
    GH_ASSIGN_OR_RETURN(const at::Tensor with_sinks,
                        LinearCrossEntropy(model, layer, report, fitted.with_sinks, 0, work));
    row.full_perplexity = std::exp(full.mean().item<double>());
    row.cost = BootstrapPerplexityChange(full, linear, options.bootstrap_resamples, options.seed);
    row.cost_with_sinks = BootstrapPerplexityChange(full, with_sinks, options.bootstrap_resamples, options.seed);
    row.improved = (linear < full).to(at::kDouble).mean().item<double>();
    row.tokens = full.numel();
    deltas.push_back(linear - full);
    deltas_with_sinks.push_back(with_sinks - full);
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  const ExperimentContext& context_;
  const std::vector<int> layers_;
  size_t corpora_ = 0;
  std::vector<LayerCost> rows_;
  std::vector<ReportArray> arrays_;
};

// What was found on one corpus, in a few sentences.
std::string Summarize(std::span<const LayerCost> rows) {
  const auto by_cost = [](const LayerCost& a, const LayerCost& b) { return a.cost.estimate < b.cost.estimate; };
  const auto count = [&](auto what) { return std::count_if(rows.begin(), rows.end(), what); };
  const LayerCost& cheapest = *std::min_element(rows.begin(), rows.end(), by_cost);
  const LayerCost& dearest = *std::max_element(rows.begin(), rows.end(), by_cost);
  const LayerCost& worst = *std::max_element(rows.begin(), rows.end(), [](const LayerCost& a, const LayerCost& b) {
    return a.cost_with_sinks.estimate < b.cost_with_sinks.estimate;
  });
  return StrCat("On ", rows.front().corpus, " (perplexity ", absl::StrFormat("%.2f", rows.front().full_perplexity),
                "), ", count([](const LayerCost& row) { return row.cost.estimate <= 0.01; }), " of ", rows.size(),
                " layers cost at most 1 % each when their MLP is linear for every token but the sinks; the costs of ",
                count([](const LayerCost& row) { return row.cost.low <= 0 && row.cost.high >= 0; }),
                " cannot be told from none. Cheapest is layer ", cheapest.layer, " at ", SignedPercent(cheapest.cost),
                ", dearest layer ", dearest.layer, " at ", SignedPercent(dearest.cost),
                ". With sinks fitted and replaced too, layer ", worst.layer, " costs ",
                SignedPercent(worst.cost_with_sinks), " instead of ", SignedPercent(worst.cost), ".");
}

ReportTable CostTable(const std::vector<LayerCost>& rows) {
  using Row = LayerCost;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      "layers",
      "Cost of each layer",
      "Relative change of perplexity with this one layer's MLP replaced by its surrogate, all others in full, on "
      "the report split; 0.01 is one percent.",
      {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("cost", "relative change of perplexity, sinks left alone",
              [](const Row& row) { return row.cost.estimate; }),
       column("cost_low", "lower end of its 95 % interval", [](const Row& row) { return row.cost.low; }),
       column("cost_high", "upper end of its 95 % interval", [](const Row& row) { return row.cost.high; }),
       column("cost_with_sinks", "relative change of perplexity, fitted on sinks and replaced there too",
              [](const Row& row) { return row.cost_with_sinks.estimate; }),
       column("cost_with_sinks_low", "lower end of its 95 % interval",
              [](const Row& row) { return row.cost_with_sinks.low; }),
       column("cost_with_sinks_high", "upper end of its 95 % interval",
              [](const Row& row) { return row.cost_with_sinks.high; }),
       column("r2", "held-out R², pooled over dimensions, sinks left out",
              [](const Row& row) { return row.r2.without_sinks; }),
       column("r2_with_sinks", "held-out R² of the surrogate fitted on every token, over every token",
              [](const Row& row) { return row.r2.with_sinks; }),
       column("delta_ce", "mean change of cross-entropy in nats, sinks left alone",
              [](const Row& row) { return row.Nats(); }),
       column("improved", "share of tokens that the linear layer predicts better",
              [](const Row& row) { return row.improved; }),
       column("full_perplexity", "perplexity of the full model", [](const Row& row) { return row.full_perplexity; }),
       column("tokens", "predicted tokens the costs are over", [](const Row& row) { return row.tokens; })}};
}

ExperimentResult CostStudy::Finish(std::span<const CorpusPlan> plans) && {
  ExperimentResult result;
  Report& report = result.report;
  report.title = "What linear layers cost";
  for (size_t i = 0; i < plans.size(); ++i) {
    const std::span<const LayerCost> rows = std::span(rows_).subspan(i * layers_.size(), layers_.size());
    report.summary += StrCat(i == 0 ? "" : " ", Summarize(rows));
  }
  DescribeProtocol(context_, plans, report);
  report.notes.push_back("A layer that is cheap alone is not cheap together with others.");
  report.notes.push_back(
      "A surrogate is fitted on each corpus anew; the fit split and the report split share no block.");
  report.tables.push_back(CostTable(rows_));
  const std::string series = plans.size() == 1 ? "" : "corpus";
  report.plots = {{.kind = ReportPlot::Kind::kBar,
                   .title = "Cost of each layer",
                   .caption = "Relative change of perplexity, sinks left alone; bars of 95 %.",
                   .table = "layers",
                   .x = "layer",
                   .y = "cost",
                   .low = "cost_low",
                   .high = "cost_high",
                   .series = series,
                   .label = ""},
                  {.kind = ReportPlot::Kind::kBar,
                   .title = "Cost of each layer with sinks",
                   .caption = "The same with sinks fitted and replaced too.",
                   .table = "layers",
                   .x = "layer",
                   .y = "cost_with_sinks",
                   .low = "cost_with_sinks_low",
                   .high = "cost_with_sinks_high",
                   .series = series,
                   .label = ""},
                  {.kind = ReportPlot::Kind::kScatter,
                   .title = "How much of a layer is linear, and what it costs",
                   .caption = "Held-out R² against cost: a good fit is not always a cheap one.",
                   .table = "layers",
                   .x = "r2",
                   .y = "cost",
                   .low = "cost_low",
                   .high = "cost_high",
                   .series = series,
                   .label = "layer"}};
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> MeasureLinearizationCosts(const ExperimentContext& context) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  CostStudy study(context);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, study));
  return std::move(study).Finish(plans);
}

}  // namespace gatehouse
