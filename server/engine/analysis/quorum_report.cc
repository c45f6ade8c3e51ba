#include "server/engine/analysis/quorum_report.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"

namespace gatehouse {
namespace {

ReportTable QuorumTable(const std::vector<QuorumRow>& rows, const char* name, const char* title,
                        const char* description) {
  using Row = QuorumRow;
  return TableOf(rows, name, title, description)
      .Add("corpus", "the text", [](const Row& row) { return row.corpus; })
      .Add("layer", "index of the layer", [](const Row& row) { return row.layer; })
      .Add("path", "what a routed token takes: linear, or skip, where the MLP writes nothing",
           [](const Row& row) { return row.path; })
      .Add("quorum", "consensus neurons that must fire, q", [](const Row& row) { return row.quorum; })
      .Add("of", "how many there are, k", [](const Row& row) { return row.most; })
      .Add("rule",
           "quorum; logistic: a gate for the same path at the same work; random: as many tokens as the quorum, drawn",
           [](const Row& row) { return row.rule; })
      .Add("series", "layer, path and rule, for plots", [](const Row& row) { return row.series; })
      .Add("threshold", "of the logistic gate, chosen on the select split",
           [](const Row& row) { return row.threshold; })
      .Add("routed", "share of all tokens that leave the full MLP; sinks count as full",
           [](const Row& row) { return row.routed; })
      .Add("work_saved", "share of the layer's MLP multiplications not done, the rule's own counted",
           [](const Row& row) { return row.work_saved; })
      .AddInterval("cost", "relative change of perplexity", [](const Row& row) { return row.cost; })
      .AddInterval("quorum_against_it",
                   "relative change of perplexity from this rule to the quorum, paired; negative where the quorum is "
                   "better",
                   [](const Row& row) { return row.against; })
      .Build();
}

struct Tally {
  int rows = 0, better = 0, worse = 0;

  void Add(const QuorumRow& row) {
    ++rows;
    better += row.against.high < 0;
    worse += row.against.low > 0;
  }
  std::string Words() const { return StrCat("better in ", better, ", worse in ", worse, " of ", rows); }
};

// What was found on one corpus.
std::string Summarize(const std::vector<QuorumRow>& rows, const std::vector<WithoutQuorum>& without,
                      const std::string& corpus) {
  std::set<int> layers;
  Tally logistic, random;
  const QuorumRow* best = nullptr;
  for (const QuorumRow& row : rows) {
    if (row.corpus != corpus) continue;
    layers.insert(row.layer);
    if (row.rule == kLogisticRule) logistic.Add(row);
    if (row.rule == kRandomRule) random.Add(row);
    const bool affordable = row.rule == kQuorumRule && row.cost.estimate <= 0.01;
    if (affordable && (best == nullptr || row.work_saved > best->work_saved)) best = &row;
  }
  const auto lacking =
      std::count_if(without.begin(), without.end(), [&](const auto& of) { return of.corpus == corpus; });
  const std::string found = StrCat("On ", corpus, ", ", layers.size(), " of ", layers.size() + lacking,
                                   " layers have consensus neurons to route by.");
  if (layers.empty()) return found;
  const std::string cheapest =
      best == nullptr ? "No quorum costs at most 1 %."
                      : StrCat("Of the quorums that cost at most 1 %, ", best->quorum, " of ", best->most, " in layer ",
                               best->layer, " (", best->path, ") saves most: ", Percent(best->work_saved),
                               " of that layer's MLP work at ", SignedPercent(best->cost), ".");
  return StrCat(found,
                " By paired intervals, layer, path and quorum each apart, the quorum is against a logistic gate of "
                "the same work ",
                logistic.Words(), ", against routing as many tokens at random ", random.Words(), ". ", cheapest);
}

}  // namespace

void DescribeQuorum(const std::vector<QuorumRow>& rows, const std::vector<WithoutQuorum>& without, bool gated_mlp,
                    Report& report) {
  report.title = "Quorum gates";
  std::vector<std::string> corpora;
  const auto mention = [&](const std::string& corpus) {
    if (std::find(corpora.begin(), corpora.end(), corpus) == corpora.end()) corpora.push_back(corpus);
  };
  for (const QuorumRow& row : rows) mention(row.corpus);
  for (const WithoutQuorum& of : without) mention(of.corpus);
  report.summary = absl::StrJoin(
      corpora, " ", [&](std::string* out, const std::string& corpus) { *out += Summarize(rows, without, corpus); });
  if (gated_mlp) report.notes.push_back("A neuron of a gated MLP fires where its gate's activation exceeds 0.1.");
  report.notes.push_back(
      "A token runs in full where fewer than q of the layer's k consensus neurons fire; a quorum costs k dot products "
      "a "
      "token, a logistic gate one.");
  report.notes.push_back(
      "Neurons are found and logistic gates fitted on the gate split; a logistic gate's threshold saves on the select "
      "split the work that the quorum saves there; every figure is of the report split. Where the quorum's own dot "
      "products eat more than routing saves, the logistic gate routes nothing.");
  report.notes.push_back("A layer that is cheap alone is not cheap together with others.");
  std::vector<QuorumRow> quorums, logistics;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(quorums),
               [](const auto& row) { return row.rule == kQuorumRule; });
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(logistics),
               [](const auto& row) { return row.rule == kLogisticRule; });
  report.tables = {QuorumTable(quorums, "quorums", "Quorum gates",
                               "Each layer alone, routed by the quorum of its consensus neurons."),
                   QuorumTable(logistics, "logistic", "Logistic gates at equal work",
                               "The same layers, paths and amounts of work, routed by a logistic gate."),
                   QuorumTable(rows, "rules", "All rules", "Quorum, logistic and random routing together.")};
  const auto plot = [](ReportPlot::Kind kind, const char* title, const char* caption, const char* table, const char* x,
                       const std::string& y) {
    return ReportPlot{.kind = kind,
                      .title = title,
                      .caption = caption,
                      .table = table,
                      .x = x,
                      .y = y,
                      .low = y + "_low",
                      .high = y + "_high",
                      .series = "series",
                      .label = "quorum"};
  };
  report.plots = {
      plot(ReportPlot::Kind::kLine, "Work saved against cost",
           "Each layer alone, by what it saves; the mark's label is the quorum.", "rules", "work_saved", "cost"),
      plot(ReportPlot::Kind::kLine, "Cost by quorum", "Each layer alone; intervals of 95 %.", "quorums", "quorum",
           "cost"),
      plot(ReportPlot::Kind::kLine, "Quorum against logistic gate",
           "Relative change of perplexity from the logistic gate to the quorum of the same work; below 0 the "
           "quorum is better.",
           "logistic", "quorum", "quorum_against_it")};
}

}  // namespace gatehouse
