#include "server/engine/analysis/gate_sweep_report.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"

namespace gatehouse {
namespace {

ReportTable SweepTable(const std::vector<SweepRow>& rows, const char* name, const char* title,
                       const char* description) {
  using Row = SweepRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {name,
          title,
          description,
          {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
           column("gate", "logistic; pca_2b: behind a bottleneck of 2b dimensions; random: the control",
                  [](const Row& row) { return row.gate; }),
           column("chosen", "1 for the layer's gate of least cost on the select split",
                  [](const Row& row) { return row.chosen; }),
           column("threshold", "a token goes linear iff p is above it", [](const Row& row) { return row.threshold; }),
           column("linear_fraction", "share of all tokens that go linear; sinks count as full",
                  [](const Row& row) { return row.linear_fraction; }),
           column("perplexity", "of the model with this one layer gated",
                  [](const Row& row) { return row.Perplexity(row.cost.estimate); }),
           column("perplexity_low", "the full model's, changed by the lower end of the cost's 95 % interval",
                  [](const Row& row) { return row.Perplexity(row.cost.low); }),
           column("perplexity_high", "the full model's, changed by the upper end of the cost's 95 % interval",
                  [](const Row& row) { return row.Perplexity(row.cost.high); }),
           column("cost", "relative change of perplexity", [](const Row& row) { return row.cost.estimate; }),
           column("cost_low", "lower end of its 95 % interval", [](const Row& row) { return row.cost.low; }),
           column("cost_high", "upper end of its 95 % interval", [](const Row& row) { return row.cost.high; }),
           column("series", "the layer, for plots", [](const Row& row) { return row.series; })}};
}

ReportTable HalfTable(const std::vector<HalfRow>& rows) {
  using Row = HalfRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      "equal_work",
      "Gates at equal work",
      "Each gate with half of the tokens but the sinks linear, those it gives the largest p. The gate of least cost "
      "on the select split is chosen; every other figure is of the report split.",
      {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("gate", "logistic; pca_2b: behind a bottleneck of 2b dimensions; random: the control",
              [](const Row& row) { return row.gate; }),
       column("series", "the gate, for plots", [](const Row& row) { return row.series; }),
       column("chosen", "1 for the gate of least select_cost, the control aside",
              [](const Row& row) { return row.chosen; }),
       column("select_cost", "relative change of perplexity on the select split",
              [](const Row& row) { return row.select_cost; }),
       column("cost", "relative change of perplexity on the report split",
              [](const Row& row) { return row.cost.estimate; }),
       column("cost_low", "lower end of its 95 % interval", [](const Row& row) { return row.cost.low; }),
       column("cost_high", "upper end of its 95 % interval", [](const Row& row) { return row.cost.high; }),
       column("linear_fraction", "share of all tokens that go linear",
              [](const Row& row) { return row.linear_fraction; }),
       column("against_random", "relative change of perplexity from the control to this gate, paired",
              [](const Row& row) { return row.against_random.estimate; }),
       column("against_random_low", "lower end of its 95 % interval",
              [](const Row& row) { return row.against_random.low; }),
       column("against_random_high", "upper end of its 95 % interval",
              [](const Row& row) { return row.against_random.high; }),
       column("auc", "of p for 'δCE is at most the gate split's limit', on the report split",
              [](const Row& row) { return row.auc.estimate; }),
       column("auc_low", "lower end of its 95 % interval", [](const Row& row) { return row.auc.low; }),
       column("auc_high", "upper end of its 95 % interval", [](const Row& row) { return row.auc.high; }),
       column("base_rate", "share of those tokens whose δCE is at most the limit",
              [](const Row& row) { return row.base_rate; }),
       column("linear_cost", "relative change of perplexity with all tokens but the sinks linear",
              [](const Row& row) { return row.linear_cost.estimate; }),
       column("linear_cost_low", "lower end of its 95 % interval", [](const Row& row) { return row.linear_cost.low; }),
       column("linear_cost_high", "upper end of its 95 % interval",
              [](const Row& row) { return row.linear_cost.high; })}};
}

// What was found on one corpus.
std::string Summarize(const std::string& corpus, const std::vector<HalfRow>& rows) {
  std::map<std::string, int> chosen;
  int layers = 0, beats_random = 0, cheap = 0, above_chance = 0;
  for (const HalfRow& row : rows) {
    if (row.corpus != corpus) continue;
    if (!row.chosen) continue;
    ++layers;
    ++chosen[row.gate];
    beats_random += row.against_random.high < 0;
    cheap += row.cost.estimate <= 0.01;
    above_chance += row.auc.low > 0.5;
  }
  const std::string choices = absl::StrJoin(
      chosen, ", ", [](std::string* out, const auto& choice) { *out += StrCat(choice.first, " in ", choice.second); });
  return StrCat(
      "On ", corpus, ", with half of the tokens linear in one layer at a time, the chosen gate costs at most 1 % in ",
      cheap, " of ", layers, " layers; it costs less than routing at random, by a paired interval, in ", beats_random,
      ", and its AUC is above chance in ", above_chance, ". Chosen on the select split: ", choices, ".");
}

ReportPlot ChosenPlot(const char* title, const char* caption, const char* x, const std::string& y) {
  return {.kind = ReportPlot::Kind::kLine,
          .title = title,
          .caption = caption,
          .table = "chosen",
          .x = x,
          .y = y,
          .low = y + "_low",
          .high = y + "_high",
          .series = "series",
          .label = ""};
}

}  // namespace

void DescribeGateSweep(const std::vector<SweepRow>& sweep, const std::vector<HalfRow>& halves, Report& report) {
  report.title = "Gates over a sweep of thresholds";
  std::vector<std::string> corpora;
  for (const HalfRow& row : halves) {
    if (corpora.empty() || corpora.back() != row.corpus) corpora.push_back(row.corpus);
  }
  report.summary = absl::StrJoin(
      corpora, " ", [&](std::string* out, const std::string& corpus) { *out += Summarize(corpus, halves); });
  report.notes.push_back(
      "Labels call about half of the tokens fine whatever a layer costs, so a gate at threshold 0.5 routes about "
      "half.");
  report.notes.push_back(
      "A bottleneck gate is as wide as a logistic one when it runs; only the numbers that decide it are fewer.");
  report.notes.push_back("The control reads nothing: at threshold t it lets a share 1 − t of the tokens go linear.");
  std::vector<SweepRow> chosen;
  std::copy_if(sweep.begin(), sweep.end(), std::back_inserter(chosen), [](const SweepRow& row) { return row.chosen; });
  report.tables = {SweepTable(chosen, "chosen", "The chosen gate of each layer",
                              "Routed fraction and perplexity of each layer's chosen gate at every threshold, on the "
                              "report split, the layer alone."),
                   HalfTable(halves),
                   SweepTable(sweep, "sweep", "All gates at all thresholds",
                              "Routed fraction and perplexity of every gate at every threshold, on the report split, "
                              "each layer alone.")};
  report.plots = {ChosenPlot("Threshold against perplexity",
                             "Each layer alone with its chosen gate; intervals of 95 % around the change.", "threshold",
                             "perplexity"),
                  ChosenPlot("Tokens routed against cost",
                             "The same gates: what a larger share of linear tokens costs.", "linear_fraction", "cost"),
                  {.kind = ReportPlot::Kind::kBar,
                   .title = "Gates at equal work",
                   .caption = "Half of the tokens linear, by the gate's own order; random is the control.",
                   .table = "equal_work",
                   .x = "layer",
                   .y = "cost",
                   .low = "cost_low",
                   .high = "cost_high",
                   .series = "series",
                   .label = ""}};
}

}  // namespace gatehouse
