#include "server/engine/analysis/nonlinearity_report.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "absl/strings/str_format.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

constexpr int kPercentiles[] = {5, 25, 50, 75, 95, 99};
constexpr int64_t kLeastOccurrences = 5;
constexpr size_t kTokensShown = 10;

// What a plot groups rows by: the corpus too where there are several.
std::string Series(bool several, const std::string& within, const std::string& corpus) {
  return several ? StrCat(within, ", ", corpus) : within;
}

// Of one corpus: its layers.
std::string Summarize(std::span<const LayerRow> layers, std::span<const StructureRow> structure) {
  const auto [least, most] =
      std::minmax_element(layers.begin(), layers.end(),
                          [](const LayerRow& a, const LayerRow& b) { return a.relative.p50 < b.relative.p50; });
  const auto steep = std::max_element(layers.begin(), layers.end(), [](const LayerRow& a, const LayerRow& b) {
    return a.high_residual_share < b.high_residual_share;
  });
  const auto show = [](const LayerRow& row) {
    return StrCat("layer ", row.layer, " (median ‖δ‖/‖y‖ ", absl::StrFormat("%.3f", row.relative.p50), ", R² ",
                  absl::StrFormat("%.3f", row.r2.estimate), ")");
  };
  std::string summary =
      StrCat("On ", layers.front().corpus, ", the most linear layer is ", show(*least), ", the least linear ",
             show(*most), ". The 5 % most nonlinear tokens of layer ", steep->layer, " carry ",
             Percent(steep->high_residual_share), " of what its surrogate leaves over.");
  const auto found = std::count_if(structure.begin(), structure.end(), [](const auto& row) { return row.structure; });
  const auto best = std::max_element(structure.begin(), structure.end(), [](const auto& a, const auto& b) {
    return (a.structure ? a.silhouette : -1) < (b.structure ? b.silhouette : -1);
  });
  summary += StrCat(" Their activation patterns cluster more than a normal cloud of the same covariance in ", found,
                    " of ", structure.size(), structure.size() == 1 ? " layer" : " layers");
  if (found > 0) {
    summary += StrCat(", most clearly in layer ", best->layer, " (silhouette ",
                      absl::StrFormat("%.3f against %.3f", best->silhouette, best->null_highest), ")");
  }
  return summary + ".";
}

ReportTable LayerTable(const std::vector<LayerRow>& rows) {
  using Row = LayerRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      "layers",
      "Nonlinearity of each layer",
      "δ = y − ŷ is what the surrogate leaves over, on tokens it was not fitted on (gate, select and report splits), "
      "sinks left out. A token's score is ‖δ‖.",
      {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("tokens", "tokens with a score", [](const Row& row) { return row.tokens; }),
       column("sinks", "tokens left out", [](const Row& row) { return row.sinks; }),
       column("r2", "R² of the surrogate, pooled over dimensions", [](const Row& row) { return row.r2.estimate; }),
       column("r2_low", "lower end of its 95 % interval", [](const Row& row) { return row.r2.low; }),
       column("r2_high", "upper end of its 95 % interval", [](const Row& row) { return row.r2.high; }),
       column("mean", "mean score", [](const Row& row) { return row.mean; }),
       column("p25", "25th percentile of the scores", [](const Row& row) { return row.score.p25; }),
       column("p50", "50th", [](const Row& row) { return row.score.p50; }),
       column("p70", "70th", [](const Row& row) { return row.score.p70; }),
       column("p95", "95th", [](const Row& row) { return row.score.p95; }),
       column("relative_p25", "25th percentile of ‖δ‖/‖y‖", [](const Row& row) { return row.relative.p25; }),
       column("relative_p50", "50th", [](const Row& row) { return row.relative.p50; }),
       column("relative_p70", "70th", [](const Row& row) { return row.relative.p70; }),
       column("relative_p95", "95th", [](const Row& row) { return row.relative.p95; }),
       column("high_residual_share", "share of Σ‖δ‖² that the tokens above the 95th percentile carry",
              [](const Row& row) { return row.high_residual_share; })}};
}

ReportTable RegimeTable(const std::vector<RegimeRow>& rows, bool several) {
  using Row = RegimeRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {"regimes",
          "Regimes",
          "Tokens by percentile of their score: linear below P25, barely from P50 to P70, high above P95, between the "
          "rest. How many there are follows from that; how much they carry does not.",
          {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
           column("regime", "linear, between, barely or high", [](const Row& row) { return row.regime; }),
           column("tokens", "tokens in it", [](const Row& row) { return row.tokens; }),
           column("share", "of the layer's tokens", [](const Row& row) { return row.share; }),
           column("score", "mean ‖δ‖", [](const Row& row) { return row.score; }),
           column("relative", "mean ‖δ‖/‖y‖", [](const Row& row) { return row.relative; }),
           column("norm", "mean ‖y‖", [](const Row& row) { return row.norm; }),
           column("residual_share", "share of the layer's Σ‖δ‖²", [](const Row& row) { return row.residual_share; }),
           column("series", "the regime, for plots",
                  [&](const Row& row) { return Series(several, row.regime, row.corpus); })}};
}

ReportTable PercentileTable(const std::vector<PercentileRow>& rows, bool several) {
  using Row = PercentileRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {"percentiles",
          "Percentiles over the layers",
          "Percentiles of the tokens' scores in each layer.",
          {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
           column("percentile", "which", [](const Row& row) { return row.percentile; }),
           column("score", "of ‖δ‖", [](const Row& row) { return row.score; }),
           column("relative", "of ‖δ‖/‖y‖", [](const Row& row) { return row.relative; }),
           column("series", "the percentile, for plots",
                  [&](const Row& row) { return Series(several, StrCat("P", row.percentile), row.corpus); })}};
}

ReportTable TokenTable(const std::vector<TokenRow>& rows) {
  using Row = TokenRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {"tokens",
          "The most nonlinear tokens",
          "Of the tokens that occur at least 5 times, those with the largest mean score in each layer.",
          {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
           column("token", "id of the token", [](const Row& row) { return row.token; }),
           column("text", "the token", [](const Row& row) { return row.text; }),
           column("count", "occurrences", [](const Row& row) { return row.count; }),
           column("score", "mean ‖δ‖", [](const Row& row) { return row.score; }),
           column("relative", "mean ‖δ‖/‖y‖", [](const Row& row) { return row.relative; }),
           column("high_share", "share of its occurrences above the layer's P95",
                  [](const Row& row) { return row.high_share; })}};
}

ReportTable StructureTable(const std::vector<StructureRow>& rows) {
  using Row = StructureRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {"structure",
          "Are there clusters?",
          "k-means finds clusters in whatever it is given. So the silhouette of a layer's most nonlinear tokens stands "
          "beside that of clouds drawn from one normal distribution with the same covariance, which has none.",
          {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
           column("tokens", "tokens clustered", [](const Row& row) { return row.tokens; }),
           column("structure", "1 where the silhouette is above that of every cloud",
                  [](const Row& row) { return row.structure ? 1 : 0; }),
           column("silhouette", "mean silhouette of the tokens", [](const Row& row) { return row.silhouette; }),
           column("null_mean", "mean silhouette of the clouds", [](const Row& row) { return row.null_mean; }),
           column("null_highest", "the highest of them", [](const Row& row) { return row.null_highest; }),
           column("explained", "share of the patterns' variance (in the components) between clusters",
                  [](const Row& row) { return row.explained; }),
           column("variance", "share of the patterns' variance in the components",
                  [](const Row& row) { return row.variance; })}};
}

ReportTable ClusterTable(const std::vector<ClusterRow>& rows) {
  using Row = ClusterRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {"clusters",
          "Clusters of the most nonlinear tokens",
          "By activation pattern, the largest first; only of layers whose patterns have structure.",
          {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
           column("cluster", "its number", [](const Row& row) { return row.cluster; }),
           column("tokens", "tokens in it", [](const Row& row) { return row.tokens; }),
           column("share", "of the layer's clustered tokens", [](const Row& row) { return row.share; }),
           column("silhouette", "mean silhouette of its tokens", [](const Row& row) { return row.silhouette; }),
           column("score", "mean ‖δ‖", [](const Row& row) { return row.score; }),
           column("commonest", "its commonest tokens, with counts", [](const Row& row) { return row.commonest; }),
           column("commonest_share", "share of the cluster that is its commonest token",
                  [](const Row& row) { return row.commonest_share; }),
           column("commonest_base", "that token's share of all that were clustered",
                  [](const Row& row) { return row.commonest_base; }),
           column("before", "the commonest tokens before its tokens", [](const Row& row) { return row.before; }),
           column("examples", "the tokens nearest to its centre, in their contexts",
                  [](const Row& row) { return row.examples; })}};
}

}  // namespace

LayerRow DescribeLayer(const std::string& corpus, int layer, const TokenScores& scores) {
  return {.corpus = corpus,
          .layer = layer,
          .tokens = static_cast<int64_t>(scores.tokens.size()),
          .mean = Mean(scores.score),
          .score = PercentilesOf(scores.score),
          .relative = PercentilesOf(scores.relative)};
}

std::vector<RegimeRow> DescribeRegimes(const std::string& corpus, int layer, const TokenScores& scores,
                                       const ScorePercentiles& percentiles) {
  std::vector<RegimeRow> rows;
  for (const char* const name : {"linear", "between", "barely", kHighRegime}) {
    rows.push_back({.corpus = corpus, .layer = layer, .regime = name});
  }
  const auto regime_of = [&](double score) -> RegimeRow& {
    if (score < percentiles.p25) return rows[0];
    if (score > percentiles.p95) return rows[3];
    return score >= percentiles.p50 && score <= percentiles.p70 ? rows[2] : rows[1];
  };
  double total = 0;
  for (size_t i = 0; i < scores.score.size(); ++i) {
    const double score = scores.score[i];
    RegimeRow& row = regime_of(score);
    ++row.tokens;
    row.score += score;
    row.relative += scores.relative[i];
    row.norm += scores.norm[i];
    row.residual_share += score * score;
    total += score * score;
  }
  for (RegimeRow& row : rows) {  // 0 / 0 is NaN: there is no mean of nothing
    const auto tokens = static_cast<double>(row.tokens);
    row.share = tokens / static_cast<double>(scores.score.size());
    row.score /= tokens;
    row.relative /= tokens;
    row.norm /= tokens;
    row.residual_share /= total;
  }
  return rows;
}

std::vector<PercentileRow> DescribePercentiles(const std::string& corpus, int layer, const TokenScores& scores) {
  std::vector<double> score = scores.score, relative = scores.relative;
  std::sort(score.begin(), score.end());
  std::sort(relative.begin(), relative.end());
  std::vector<PercentileRow> rows;
  for (const int percentile : kPercentiles) {
    rows.push_back(
        {corpus, layer, percentile, Quantile(score, percentile / 100.0), Quantile(relative, percentile / 100.0)});
  }
  return rows;
}

std::vector<TokenRow> MostNonlinearTokens(const std::string& corpus, int layer, const TokenScores& scores,
                                          std::span<const int32_t> text, double p95) {
  std::map<int32_t, TokenRow> by_token;
  for (size_t i = 0; i < scores.tokens.size(); ++i) {
    TokenRow& row = by_token[text[scores.tokens[i]]];
    ++row.count;
    row.score += scores.score[i];
    row.relative += scores.relative[i];
    row.high_share += scores.score[i] > p95 ? 1 : 0;
  }
  std::vector<TokenRow> rows;
  for (const auto& [token, sums] : by_token) {
    if (sums.count < kLeastOccurrences) continue;
    const auto count = static_cast<double>(sums.count);
    rows.push_back({.corpus = corpus,
                    .layer = layer,
                    .token = token,
                    .count = sums.count,
                    .score = sums.score / count,
                    .relative = sums.relative / count,
                    .high_share = sums.high_share / count});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const TokenRow& a, const TokenRow& b) { return a.score > b.score; });
  if (rows.size() > kTokensShown) rows.resize(kTokensShown);
  return rows;
}

void DescribeNonlinearity(const NonlinearityFindings& findings, Report& report) {
  report.title = "How nonlinear each layer is";
  const bool several = findings.layers.front().corpus != findings.layers.back().corpus;
  for (size_t first = 0, last = 0; first < findings.layers.size(); first = last) {
    while (last < findings.layers.size() && findings.layers[last].corpus == findings.layers[first].corpus) ++last;
    report.summary +=
        StrCat(first == 0 ? "" : " ", Summarize(std::span(findings.layers).subspan(first, last - first),
                                                std::span(findings.structure).subspan(first, last - first)));
  }
  report.notes.emplace_back(
      "Scores are not comparable across layers as they are, since layers write outputs of different size; ‖δ‖/‖y‖ is.");
  report.notes.emplace_back(
      "A cloud of another shape than a normal distribution's can beat the clouds without falling into clusters: a "
      "silhouette below about 0.25 says that the borders between clusters are not sharp.");
  report.tables = {LayerTable(findings.layers),
                   RegimeTable(findings.regimes, several),
                   PercentileTable(findings.percentiles, several),
                   TokenTable(findings.tokens),
                   StructureTable(findings.structure),
                   ClusterTable(findings.clusters)};

  const std::string corpus = several ? "corpus" : "";
  report.plots = {{.kind = ReportPlot::Kind::kLine,
                   .title = "Nonlinearity over the layers",
                   .caption = "Percentiles of ‖δ‖/‖y‖ over the tokens of each layer.",
                   .table = "percentiles",
                   .x = "layer",
                   .y = "relative",
                   .low = "",
                   .high = "",
                   .series = "series",
                   .label = ""},
                  {.kind = ReportPlot::Kind::kLine,
                   .title = "How much of each layer is linear",
                   .caption = "Held-out R² of the surrogate; bars of 95 %.",
                   .table = "layers",
                   .x = "layer",
                   .y = "r2",
                   .low = "r2_low",
                   .high = "r2_high",
                   .series = corpus,
                   .label = ""},
                  {.kind = ReportPlot::Kind::kLine,
                   .title = "Who carries what is not linear",
                   .caption = "Share of Σ‖δ‖² by regime; the high regime has 5 % of the tokens, the linear one 25 %.",
                   .table = "regimes",
                   .x = "layer",
                   .y = "residual_share",
                   .low = "",
                   .high = "",
                   .series = "series",
                   .label = ""},
                  {.kind = ReportPlot::Kind::kScatter,
                   .title = "Do the most nonlinear tokens cluster?",
                   .caption = "Silhouette of each layer against the highest of clouds without clusters.",
                   .table = "structure",
                   .x = "null_highest",
                   .y = "silhouette",
                   .low = "",
                   .high = "",
                   .series = corpus,
                   .label = "layer"}};
}

}  // namespace gatehouse
