#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_ABLATION_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_ABLATION_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/analysis/statistics.h"
#include "server/engine/report.h"

namespace gatehouse {

// What zeroing MLPs showed (methods B.7), as tables.

// Where an MLP was zeroed.
enum class ZeroedTokens { kAll, kNoSinks, kLevel };

// One layer, its MLP zeroed.
struct AblationLayerRow {
  std::string corpus, series;
  int layer = 0;
  int64_t consensus = 0, exception = 0;  // neurons found
  Interval change, kl;                   // at all positions, over all predicted tokens
  Interval change_no_sinks, kl_no_sinks;
  // Mean ΔCE at all positions of tokens at which fewer than half of the consensus neurons fire,
  // of all others, and the difference; sinks left out.  NaN where there are no such tokens.
  Interval minority, majority, contrast;
};

struct AblationLevelRow {
  std::string corpus, series;
  int layer = 0;
  ZeroedTokens zeroed = ZeroedTokens::kAll;
  int64_t level = 0, most = 0, tokens = 0;
  double share = 0;
  Interval delta_ce, kl;  // of the level's tokens
  Interval whole_change;  // of perplexity, over all predicted tokens
};

struct AblationFigures {
  std::vector<AblationLayerRow> layers;
  std::vector<AblationLevelRow> levels;
};

// Fills in title, summary, notes, tables and plots.
void DescribeAblation(const AblationFigures& figures, bool gated_mlp, Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_ABLATION_REPORT_H_
