#include "server/engine/analysis/ablation_report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"

namespace gatehouse {
namespace {

std::string NameOf(ZeroedTokens zeroed) {
  switch (zeroed) {
    case ZeroedTokens::kAll:
      return "all positions";
    case ZeroedTokens::kNoSinks:
      return "all but sinks";
    case ZeroedTokens::kLevel:
      return "this level";
  }
  return "";
}

// A mean ΔCE as a relative change of perplexity.
Interval AsChange(const Interval& nats) {
  return {std::expm1(nats.estimate), std::expm1(nats.low), std::expm1(nats.high)};
}

ReportTable LayerTable(const std::vector<AblationLayerRow>& rows) {
  using Row = AblationLayerRow;
  return TableOf(rows, "layers", "What zeroing each layer's MLP costs",
                 "One layer's MLP writes nothing, all others as they are; the report split.")
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("series", "the text, for plots", [](const Row& row) { return row.series; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("consensus", "consensus neurons found", [](const Row& row) { return row.consensus; })
      .Add("exception", "exception neurons found", [](const Row& row) { return row.exception; })
      .AddInterval("change", "relative change of perplexity, zeroed at all positions",
                   [](const Row& row) { return row.change; })
      .AddInterval("kl", "mean KL(full ‖ ablated) in nats, zeroed at all positions",
                   [](const Row& row) { return row.kl; })
      .AddInterval("change_no_sinks", "relative change of perplexity, the first positions left in full",
                   [](const Row& row) { return row.change_no_sinks; })
      .AddInterval("kl_no_sinks", "mean KL(full ‖ ablated) in nats, the first positions left in full",
                   [](const Row& row) { return row.kl_no_sinks; })
      .AddInterval("minority",
                   "mean ΔCE in nats of tokens at which fewer than half of the consensus neurons fire, zeroed at all "
                   "positions",
                   [](const Row& row) { return row.minority; })
      .AddInterval("majority", "the same of tokens at which at least half fire",
                   [](const Row& row) { return row.majority; })
      .AddInterval("contrast", "minority less majority in nats; positive where the MLP matters more without consensus",
                   [](const Row& row) { return row.contrast; })
      .Build();
}

ReportTable LevelTable(const std::vector<AblationLevelRow>& rows, const char* name, const char* title,
                       const char* description) {
  using Row = AblationLevelRow;
  return TableOf(rows, name, title, description)
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("series", "the layer, for plots", [](const Row& row) { return row.series; })
      .Add("zeroed", "where the MLP writes nothing: all positions, all but sinks, or only tokens of this level",
           [](const Row& row) { return NameOf(row.zeroed); })
      .Add("level", "how many consensus neurons fire", [](const Row& row) { return row.level; })
      .Add("of", "how many there are", [](const Row& row) { return row.most; })
      .Add("level_share", "share of the layer's consensus neurons that fire",
           [](const Row& row) { return static_cast<double>(row.level) / static_cast<double>(row.most); })
      .Add("tokens", "tokens of that level that predict one, sinks left out", [](const Row& row) { return row.tokens; })
      .Add("share", "share of all such tokens", [](const Row& row) { return row.share; })
      .AddInterval("delta_ce", "mean ΔCE of the level's tokens in nats", [](const Row& row) { return row.delta_ce; })
      .AddInterval("change", "relative change of perplexity over the level's tokens",
                   [](const Row& row) { return AsChange(row.delta_ce); })
      .AddInterval("kl", "mean KL(full ‖ ablated) of the level's tokens in nats", [](const Row& row) { return row.kl; })
      .AddInterval("whole_change", "relative change of perplexity over all tokens, whatever their level",
                   [](const Row& row) { return row.whole_change; })
      .Build();
}

// What was found on one corpus.
std::string Summarize(const std::vector<AblationLayerRow>& all, const std::string& corpus) {
  std::vector<AblationLayerRow> rows;
  std::copy_if(all.begin(), all.end(), std::back_inserter(rows), [&](const auto& row) { return row.corpus == corpus; });
  const auto& dearest = *std::max_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.change_no_sinks.estimate < b.change_no_sinks.estimate;
  });
  int with_consensus = 0, more = 0, less = 0;
  for (const AblationLayerRow& row : rows) {
    with_consensus += row.consensus > 0;
    more += row.contrast.low > 0;
    less += row.contrast.high < 0;
  }
  const std::string found = StrCat("On ", corpus, ", zeroing the MLP of layer ", dearest.layer,
                                   " costs most: ", SignedPercent(dearest.change), " of perplexity, ",
                                   SignedPercent(dearest.change_no_sinks), " with the first positions left in full.");
  if (with_consensus == 0) return StrCat(found, " No layer has consensus neurons to group the tokens by.");
  return StrCat(found, " Of ", with_consensus, " layers with consensus neurons, in ", more,
                " the tokens without a majority of them suffer more than the others, in ", less, " less, and in ",
                with_consensus - more - less, " the two cannot be told apart.");
}

ReportPlot LevelPlot(const char* title, const char* caption, const char* table, const std::string& y) {
  return {.kind = ReportPlot::Kind::kLine,
          .title = title,
          .caption = caption,
          .table = table,
          .x = "level_share",
          .y = y,
          .low = y + "_low",
          .high = y + "_high",
          .series = "series",
          .label = ""};
}

}  // namespace

void DescribeAblation(const AblationFigures& figures, bool gated_mlp, Report& report) {
  report.title = "What zeroing an MLP does, by level of consensus";
  std::vector<std::string> corpora;
  for (const AblationLayerRow& row : figures.layers) {
    if (corpora.empty() || corpora.back() != row.corpus) corpora.push_back(row.corpus);
  }
  report.summary = absl::StrJoin(
      corpora, " ", [&](std::string* out, const std::string& corpus) { *out += Summarize(figures.layers, corpus); });
  if (gated_mlp) report.notes.push_back("A neuron of a gated MLP fires where its gate's activation exceeds 0.1.");
  report.notes.push_back(
      "Neurons are found on the gate split; what zeroing does is measured on the report split. Levels are those of the "
      "full model and leave sinks out.");
  report.notes.push_back(
      "Zeroed at all positions, a token of a layer that is not the last suffers for its context too; zeroed at one "
      "level "
      "only, the rest of its context is as it was.");
  report.notes.push_back(
      "In the last layer no token reads what another's MLP wrote, so that zeroing a level is zeroing all, seen at that "
      "level.");
  const auto with = [&](bool level) {
    std::vector<AblationLevelRow> rows;
    std::copy_if(figures.levels.begin(), figures.levels.end(), std::back_inserter(rows),
                 [&](const auto& row) { return (row.zeroed == ZeroedTokens::kLevel) == level; });
    return rows;
  };
  std::vector<AblationLevelRow> everywhere = with(false);
  // Plots show the paper's protocol alone.
  std::vector<AblationLevelRow> all_positions;
  std::copy_if(everywhere.begin(), everywhere.end(), std::back_inserter(all_positions),
               [](const auto& row) { return row.zeroed == ZeroedTokens::kAll; });
  std::erase_if(everywhere, [](const auto& row) { return row.zeroed == ZeroedTokens::kAll; });
  report.tables = {LayerTable(figures.layers),
                   LevelTable(all_positions, "levels", "Zeroed at all positions, by level",
                              "The damage of each token, grouped by its level of consensus; one pass."),
                   LevelTable(everywhere, "levels_no_sinks", "Zeroed at all but the first positions, by level",
                              "The same with the first positions of each block left in full."),
                   LevelTable(with(true), "levels_alone", "Zeroed at one level at a time",
                              "The MLP writes nothing at the tokens of that level alone; one pass a level.")};
  report.plots = {
      LevelPlot("Damage by level of consensus", "Mean ΔCE with the MLP zeroed at all positions; 95 %.", "levels",
                "delta_ce"),
      LevelPlot("KL by level of consensus", "KL(full ‖ ablated) with the MLP zeroed at all positions; 95 %.", "levels",
                "kl"),
      LevelPlot("Damage of zeroing one level", "Mean ΔCE of the level's tokens, only these zeroed; 95 %.",
                "levels_alone", "delta_ce"),
      {.kind = ReportPlot::Kind::kBar,
       .title = "What each layer's MLP is worth",
       .caption = "Relative change of perplexity without it, the first positions left in full; 95 %.",
       .table = "layers",
       .x = "layer",
       .y = "change_no_sinks",
       .low = "change_no_sinks_low",
       .high = "change_no_sinks_high",
       .series = "series",
       .label = ""},
      {.kind = ReportPlot::Kind::kBar,
       .title = "Without consensus against with it",
       .caption = "ΔCE of tokens without a majority of the consensus neurons less that of the others; 95 %.",
       .table = "layers",
       .x = "layer",
       .y = "contrast",
       .low = "contrast_low",
       .high = "contrast_high",
       .series = "series",
       .label = ""}};
}

}  // namespace gatehouse
