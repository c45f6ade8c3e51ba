#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_QUORUM_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_QUORUM_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/analysis/statistics.h"
#include "server/engine/report.h"

namespace gatehouse {

// What a comparison of quorum gates with logistic ones (methods B.9) found, as tables.

inline constexpr const char* kQuorumRule = "quorum";
inline constexpr const char* kLogisticRule = "logistic";
inline constexpr const char* kRandomRule = "random";

// One layer, its tokens routed by one rule.
struct QuorumRow {
  std::string corpus, series;
  int layer = 0;
  std::string path;  // of the tokens that are routed away from the full MLP: "linear" or "skip"
  int64_t quorum = 0, most = 0;
  std::string rule;
  double threshold = 0;  // the logistic gate's; NaN for others
  double routed = 0;     // share of all tokens that leave the full MLP
  double work_saved = 0;
  Interval cost = {};     // relative change of perplexity
  Interval against = {};  // the same from this rule to the quorum; 0 for the quorum itself
};

// A layer that has no consensus neurons, and so no quorum.
struct WithoutQuorum {
  std::string corpus;
  int layer = 0;
};

// Fills in title, summary, notes, tables and plots.
void DescribeQuorum(const std::vector<QuorumRow>& rows, const std::vector<WithoutQuorum>& without, bool gated_mlp,
                    Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_QUORUM_REPORT_H_
