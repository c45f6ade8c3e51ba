#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_NONLINEARITY_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_NONLINEARITY_REPORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/analysis/token_clusters.h"
#include "server/engine/report.h"

namespace gatehouse {

// What the nonlinearity scores of the layers (methods B.1) and the clusters of their most
// nonlinear tokens (B.3) came to, and how it is shown.

// The tokens of one layer that are no sinks, one entry each.
struct TokenScores {
  std::vector<int64_t> tokens;   // index among the tokens of the text that were scored, ascending
  std::vector<double> score;     // ‖δ‖
  std::vector<double> relative;  // ‖δ‖/‖y‖
  std::vector<double> norm;      // ‖y‖
};

inline constexpr const char* kHighRegime = "high";

// One regime of a layer.
struct RegimeRow {
  std::string corpus;
  int layer = 0;
  std::string regime;
  int64_t tokens = 0;
  double share = 0;           // of the layer's tokens
  double score = 0;           // mean ‖δ‖
  double relative = 0;        // mean ‖δ‖/‖y‖
  double norm = 0;            // mean ‖y‖
  double residual_share = 0;  // of Σ‖δ‖² of the layer
};

// One percentile of a layer.
struct PercentileRow {
  std::string corpus;
  int layer = 0;
  int percentile = 0;
  double score = 0, relative = 0;
};

struct LayerRow {
  std::string corpus;
  int layer = 0;
  int64_t tokens = 0, sinks = 0;
  Interval r2 = {};
  double mean = 0;
  ScorePercentiles score = {}, relative = {};
  double high_residual_share = 0;
};

// A token that is nonlinear wherever it stands.
struct TokenRow {
  std::string corpus;
  int layer = 0;
  int32_t token = 0;
  std::string text = {};
  int64_t count = 0;
  double score = 0, relative = 0;  // means
  double high_share = 0;           // of its occurrences in the high regime
};

// Whether a layer's most nonlinear tokens cluster; NaN where there are too few of them.
struct StructureRow {
  std::string corpus;
  int layer = 0;
  int64_t tokens = 0;
  double silhouette = 0, null_mean = 0, null_highest = 0;
  bool structure = false;
  double explained = 0, variance = 0;
};

struct ClusterRow {
  std::string corpus;
  int layer = 0;
  int cluster = 0;
  int64_t tokens = 0;
  double share = 0;
  double silhouette = 0;
  double score = 0;            // mean ‖δ‖
  std::string commonest = {};  // tokens
  double commonest_share = 0;  // of the cluster, of its commonest token
  double commonest_base = 0;   // the same token's share of all that were clustered
  std::string before = {};     // the commonest tokens before
  std::string examples = {};   // nearest to the centre, in their contexts
};

struct NonlinearityFindings {
  std::vector<LayerRow> layers;
  std::vector<RegimeRow> regimes;
  std::vector<PercentileRow> percentiles;
  std::vector<TokenRow> tokens;
  std::vector<StructureRow> structure;
  std::vector<ClusterRow> clusters;
};

// REQUIRES, of these: a token or more.  Without sinks and R².
LayerRow DescribeLayer(const std::string& corpus, int layer, const TokenScores& scores);
std::vector<RegimeRow> DescribeRegimes(const std::string& corpus, int layer, const TokenScores& scores,
                                       const ScorePercentiles& percentiles);
std::vector<PercentileRow> DescribePercentiles(const std::string& corpus, int layer, const TokenScores& scores);
// Those with the largest mean score of the tokens that occur often enough, without their texts.
// text: the tokens that were scored.
std::vector<TokenRow> MostNonlinearTokens(const std::string& corpus, int layer, const TokenScores& scores,
                                          std::span<const int32_t> text, double p95);

// Fills in title, summary, tables and plots, and adds notes.
void DescribeNonlinearity(const NonlinearityFindings& findings, Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_NONLINEARITY_REPORT_H_
