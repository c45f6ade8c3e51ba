#include "server/engine/analysis/consensus_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"

namespace gatehouse {
namespace {

// What plots group by: the corpus too where there are several.
class Series {
 public:
  explicit Series(const std::vector<ConsensusLayerRow>& layers)
      : several_(std::any_of(layers.begin(), layers.end(),
                             [&](const auto& row) { return row.corpus != layers.front().corpus; })) {}
  std::string Of(const std::string& within, const std::string& corpus) const {
    return several_ ? StrCat(within, ", ", corpus) : within;
  }

 private:
  const bool several_;
};

ReportTable ArcTable(const std::vector<ConsensusLayerRow>& rows) {
  using Row = ConsensusLayerRow;
  TableOf table(rows, "arc", "The arc over the layers",
                "How many neurons the rules name in each layer, beside what the same rules name with the regimes "
                "shuffled among the tokens (mean of 20) and in the same layer with its MLP drawn anew.");
  table.Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("phase",
           "scaffold: a gateway neuron and no consensus; diffuse: neither; decision: consensus and exception neurons; "
           "consensus only: no exception neuron",
           [](const Row& row) { return PhaseOf(row.found); })
      .Add("random_phase", "the phase that the random weights would be given",
           [](const Row& row) { return PhaseOf(row.random); });
  const auto counts = [&](const std::string& kind, double FindingCounts::*count) {
    table.Add(kind, StrCat(kind, " neurons"), [count](const Row& row) { return row.found.*count; })
        .Add(kind + "_shuffled", "with shuffled regimes", [count](const Row& row) { return row.shuffled.*count; })
        .Add(kind + "_random", "with random weights", [count](const Row& row) { return row.random.*count; });
  };
  counts("consensus", &FindingCounts::consensus);
  counts("exception", &FindingCounts::exception);
  counts("gateway", &FindingCounts::gateway);
  return table
      .AddInterval("gradient",
                   "correlation of the level of consensus and ‖δ‖; negative where consensus goes with linearity",
                   [](const Row& row) { return row.gradient; })
      .AddInterval("random_gradient", "the same for the neurons found in random weights",
                   [](const Row& row) { return row.random_gradient; })
      .Build();
}

// What a plot needs of the table above: one number a row.
struct ArcPoint {
  std::string corpus, series;
  int layer = 0;
  Interval value = {};
};

ReportTable CountTable(const std::vector<ConsensusLayerRow>& rows, const Series& series) {
  std::vector<ArcPoint> points;
  const auto add = [&](const ConsensusLayerRow& row, const char* what, double count) {
    points.push_back({row.corpus, series.Of(what, row.corpus), row.layer, {count, count, count}});
  };
  for (const ConsensusLayerRow& row : rows) {
    add(row, "consensus", row.found.consensus);
    add(row, "consensus, shuffled labels", row.shuffled.consensus);
    add(row, "consensus, random weights", row.random.consensus);
    add(row, "exception", row.found.exception);
    add(row, "exception, shuffled labels", row.shuffled.exception);
    add(row, "exception, random weights", row.random.exception);
  }
  return TableOf(points, "counts", "Consensus and exception neurons by layer", "The counts of the arc, for its plot.")
      .Add("corpus", "the text", [](const ArcPoint& point) { return point.corpus; })
      .Add("layer", "index of the layer", [](const ArcPoint& point) { return point.layer; })
      .Add("series", "which neurons, for plots", [](const ArcPoint& point) { return point.series; })
      .Add("count", "how many", [](const ArcPoint& point) { return point.value.estimate; })
      .Build();
}

ReportTable GradientTable(const std::vector<ConsensusLayerRow>& rows, const Series& series) {
  std::vector<ArcPoint> points;
  for (const ConsensusLayerRow& row : rows) {
    points.push_back({row.corpus, series.Of(kTrained, row.corpus), row.layer, row.gradient});
    points.push_back({row.corpus, series.Of(kRandomWeights, row.corpus), row.layer, row.random_gradient});
  }
  return TableOf(points, "gradients", "The consensus gradient by layer", "The gradients of the arc, for their plot.")
      .Add("corpus", "the text", [](const ArcPoint& point) { return point.corpus; })
      .Add("layer", "index of the layer", [](const ArcPoint& point) { return point.layer; })
      .Add("series", "whose neurons, for plots", [](const ArcPoint& point) { return point.series; })
      .AddInterval("gradient", "correlation of the level of consensus and ‖δ‖",
                   [](const ArcPoint& point) { return point.value; })
      .Build();
}

ReportTable NeuronTable(const std::vector<NeuronRow>& rows) {
  using Row = NeuronRow;
  return TableOf(rows, "neurons", "The neurons",
                 "Every neuron that the rules name, most extreme first, with its rates on the tokens it was found on "
                 "(the gate split) and on others (the report split).")
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("kind", "consensus, exception or gateway", [](const Row& row) { return row.kind; })
      .Add("neuron", "index of the neuron", [](const Row& row) { return row.found.neuron; })
      .Add("base_rate", "share of the tokens on which it fires", [](const Row& row) { return row.found.base_rate; })
      .Add("difference", "firing rate in the high regime less that in the linear one",
           [](const Row& row) { return row.found.rate_difference; })
      .Add("held_out_base_rate", "share on which it fires, on the report split",
           [](const Row& row) { return row.held_out.base_rate; })
      .Add("held_out_difference", "the difference on the report split, by its own regimes",
           [](const Row& row) { return row.held_out.rate_difference; })
      .Build();
}

ReportTable LevelTable(const std::vector<LevelRow>& rows, const Series& series) {
  using Row = LevelRow;
  return TableOf(rows, "levels", "What each level of consensus goes with",
                 "Tokens of the report split by how many of the layer's consensus neurons fire, sinks left out; beside "
                 "them the same for the neurons that the rules find in random weights.")
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("weights", "trained, or random weights: the control", [](const Row& row) { return row.weights; })
      .Add("series", "the layer, for plots",
           [&](const Row& row) {
             const std::string layer = StrCat("layer ", row.layer);
             return series.Of(row.weights == kTrained ? layer : StrCat(layer, ", ", row.weights), row.corpus);
           })
      .Add("level", "how many consensus neurons fire", [](const Row& row) { return row.level; })
      .Add("of", "how many there are", [](const Row& row) { return row.most; })
      .Add("level_share", "share of the layer's consensus neurons that fire",
           [](const Row& row) { return static_cast<double>(row.level) / static_cast<double>(row.most); })
      .Add("tokens", "tokens of that level", [](const Row& row) { return row.statistics.tokens; })
      .AddInterval("share", "share of all tokens", [](const Row& row) { return row.statistics.share; })
      .AddInterval("exception_rate",
                   "share on which the exception neuron of the largest difference fires; none where there is none",
                   [](const Row& row) { return row.statistics.exception; })
      .AddInterval("any_exception_rate", "share on which any exception neuron fires",
                   [](const Row& row) { return row.statistics.any_exception; })
      .AddInterval("output_norm", "mean ‖y‖", [](const Row& row) { return row.statistics.norm; })
      .AddInterval("residual_norm", "mean ‖δ‖", [](const Row& row) { return row.statistics.residual; })
      .Build();
}

ReportTable ExclusivityTable(const std::vector<ExclusivityRow>& rows) {
  using Row = ExclusivityRow;
  return TableOf(
             rows, "exclusivity", "Whether exception and consensus neurons avoid each other",
             "1 − both / either for each pair, beside its value for neurons of the same rates that are independent, "
             "which is high wherever one of them fires seldom.")
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("exception", "the exception neuron", [](const Row& row) { return row.exception; })
      .Add("consensus", "the consensus neuron", [](const Row& row) { return row.consensus; })
      .Add("exception_rate", "share of the tokens on which it fires",
           [](const Row& row) { return row.exclusivity.first_rate; })
      .Add("consensus_rate", "share of the tokens on which it fires",
           [](const Row& row) { return row.exclusivity.second_rate; })
      .AddInterval("exclusivity", "1 − both / either, as a share", [](const Row& row) { return row.exclusivity.value; })
      .Add("independent", "the share under independence", [](const Row& row) { return row.exclusivity.independent; })
      .AddInterval("excess", "exclusivity less its value under independence, as a share",
                   [](const Row& row) { return row.exclusivity.excess; })
      .Build();
}

ReportTable PredictionTable(const std::vector<PredictionRow>& rows, const Series& series) {
  using Row = PredictionRow;
  return TableOf(rows, "prediction", "Binary against continuous",
                 "What is predicted on the report split from the consensus neurons alone, as bits that say whether "
                 "each fires or as their activations; fitted on the gate split.")
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("reading", "binary or continuous", [](const Row& row) { return row.reading; })
      .Add("series", "the reading, for plots", [&](const Row& row) { return series.Of(row.reading, row.corpus); })
      .AddInterval("accuracy", "share of tokens put rightly in or out of the top quarter of ‖δ‖",
                   [](const Row& row) { return row.figures.accuracy; })
      .Add("base_rate", "the share that saying 'not in it' always gets right",
           [](const Row& row) { return row.base_rate; })
      .AddInterval("gain", "accuracy less the base rate, as a share", [](const Row& row) { return row.figures.gain; })
      .AddInterval("auc", "of the probability for the top quarter", [](const Row& row) { return row.figures.auc; })
      .AddInterval("norm_r2", "held-out R² of a ridge regression of ‖y‖", [](const Row& row) { return row.figures.r2; })
      .Build();
}

ReportTable DifferenceTable(const std::vector<ReadingDifferenceRow>& rows) {
  using Row = ReadingDifferenceRow;
  return TableOf(rows, "continuous_less_binary", "What the activations say beyond the bits",
                 "Continuous less binary on the same tokens, paired.")
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .AddInterval("accuracy", "difference of accuracy, as a share", [](const Row& row) { return row.accuracy; })
      .AddInterval("auc", "difference of AUC", [](const Row& row) { return row.auc; })
      .AddInterval("norm_r2", "difference of R² of ‖y‖", [](const Row& row) { return row.r2; })
      .Build();
}

ReportPlot LinePlot(const char* title, const char* caption, const char* table, const char* x, const std::string& y,
                    bool interval = true) {
  return {.kind = ReportPlot::Kind::kLine,
          .title = title,
          .caption = caption,
          .table = table,
          .x = x,
          .y = y,
          .low = interval ? y + "_low" : "",
          .high = interval ? y + "_high" : "",
          .series = "series",
          .label = ""};
}

// What was found on one corpus.
std::string Summarize(const ConsensusFigures& figures, const std::string& corpus) {
  std::map<std::string, std::vector<int>> phases;
  int named = 0, random_named = 0, steeper = 0, layers = 0, beyond_random = 0;
  for (const ConsensusLayerRow& row : figures.layers) {
    if (row.corpus != corpus) continue;
    ++layers;
    phases[PhaseOf(row.found)].push_back(row.layer);
    named += row.found.consensus > 0;
    random_named += row.random.consensus > 0;
    beyond_random += row.found.consensus > row.random.consensus;
    steeper += row.gradient.high < 0 && !(row.random_gradient.low < row.gradient.high);
  }
  int gains = 0, says_more = 0;
  for (const PredictionRow& row : figures.predictions) {
    gains += row.corpus == corpus && row.reading == "binary" && row.figures.gain.low > 0;
  }
  for (const ReadingDifferenceRow& row : figures.differences) says_more += row.corpus == corpus && row.accuracy.low > 0;
  const std::string arc = absl::StrJoin(phases, "; ", [](std::string* out, const auto& phase) {
    *out += StrCat(phase.first, ": ", absl::StrJoin(phase.second, ", "));
  });
  const std::string found = StrCat("On ", corpus, ", ", named, " of ", layers, " layers have consensus neurons, ",
                                   beyond_random, " of them more than random weights on the same inputs, of which ",
                                   random_named, " have some. Phases of the layers: ", arc, ".");
  if (named == 0) return found;
  return StrCat(
      found, " In ", steeper, " of ", named,
      " layers ‖δ‖ falls with the level of consensus, by an interval wholly below that of random weights. Which "
      "consensus neurons fire foretells the top quarter of ‖δ‖ better than its base rate in ",
      gains, "; their activations say more than the bits in ", says_more, ".");
}

}  // namespace

std::string PhaseOf(const FindingCounts& counts) {
  if (counts.consensus > 0) return counts.exception > 0 ? "decision" : "consensus only";
  return counts.gateway > 0 ? "scaffold" : "diffuse";
}

void DescribeConsensus(const ConsensusFigures& figures, bool gated_mlp, Report& report) {
  report.title = "Consensus architecture";
  std::vector<std::string> corpora;
  for (const ConsensusLayerRow& row : figures.layers) {
    if (corpora.empty() || corpora.back() != row.corpus) corpora.push_back(row.corpus);
  }
  report.summary = absl::StrJoin(
      corpora, " ", [&](std::string* out, const std::string& corpus) { *out += Summarize(figures, corpus); });
  report.notes.push_back(gated_mlp
                             ? "A neuron fires where its activation exceeds 0.1. The MLPs of this model are gated: the "
                               "activation is the gate's, act(gate), whatever the up projection says."
                             : "A neuron fires where its activation exceeds 0.1.");
  report.notes.push_back(
      "Neurons are found on the gate split, with regimes by ‖δ‖ under the surrogate of the fit split; predictions are "
      "fitted there too. Everything else is of the report split.");
  report.notes.push_back(
      "Consensus neurons are chosen for being silent where ‖δ‖ is large, so some gradient follows from the choice "
      "alone: what training made shows only beside random weights.");
  const Series series(figures.layers);
  report.tables = {ArcTable(figures.layers),
                   LevelTable(figures.levels, series),
                   ExclusivityTable(figures.exclusivity),
                   PredictionTable(figures.predictions, series),
                   DifferenceTable(figures.differences),
                   NeuronTable(figures.neurons),
                   CountTable(figures.layers, series),
                   GradientTable(figures.layers, series)};
  report.plots = {
      LinePlot("Nonlinearity by level of consensus",
               "Mean ‖δ‖ of the tokens at which that share of the layer's "
               "consensus neurons fires; intervals of 95 %.",
               "levels", "level_share", "residual_norm"),
      LinePlot("Exception neuron by level of consensus",
               "Share of the tokens on which the leading exception neuron fires.", "levels", "level_share",
               "exception_rate"),
      LinePlot("Tokens by level of consensus", "Share of all tokens.", "levels", "level_share", "share"),
      LinePlot("Neurons by layer", "How many neurons the rules name, beside what they name by chance.", "counts",
               "layer", "count", false),
      LinePlot("The consensus gradient by layer",
               "Correlation of level and ‖δ‖, beside random weights; intervals of 95 %.", "gradients", "layer",
               "gradient"),
      LinePlot("Binary against continuous", "Accuracy for the top quarter of ‖δ‖; its base rate is near 75 %.",
               "prediction", "layer", "accuracy")};
}

}  // namespace gatehouse
