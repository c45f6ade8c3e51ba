#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_GATE_SWEEP_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_GATE_SWEEP_REPORT_H_

#include <string>
#include <vector>

#include "server/engine/analysis/statistics.h"
#include "server/engine/report.h"

namespace gatehouse {

// What a sweep of gates (methods A.3) found, and how it is shown.

// The control: p drawn for each token, nothing read.
inline constexpr const char* kRandomGate = "random";

// One gate at one threshold.
struct SweepRow {
  std::string corpus, series = {};
  int layer = 0;
  std::string gate;
  bool chosen = false;
  double threshold = 0;
  double linear_fraction = 0;
  double full_perplexity = 0;
  Interval cost = {};

  double Perplexity(double change) const { return full_perplexity * (1 + change); }
};

// One gate with the half of the tokens linear that it thinks best of.
struct HalfRow {
  std::string corpus;
  int layer = 0;
  std::string gate, series;
  bool chosen = false;
  double select_cost = 0;
  Interval cost = {};
  Interval against_random = {};  // change of perplexity from the control to this gate
  Interval auc = {};
  double base_rate = 0;  // of label 1 among the report split's tokens
  Interval linear_cost;  // of the layer, all tokens but the sinks linear
  double linear_fraction = 0;
};

// Fills in title, summary, notes, tables and plots.  halves: a layer's gates together, its
// control the last of them.
void DescribeGateSweep(const std::vector<SweepRow>& sweep, const std::vector<HalfRow>& halves, Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_GATE_SWEEP_REPORT_H_
