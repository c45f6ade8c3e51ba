#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_POLYNOMIAL_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_POLYNOMIAL_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/analysis/polynomial_fit.h"
#include "server/engine/report.h"

namespace gatehouse {

// What the polynomial probe (methods B.2) found, and how it is shown.

inline constexpr const char* kAllTokens = "all";
inline constexpr const char* kWithoutNewlines = "without newlines";

// The probe of one layer on some of its tokens.
struct ProbeRun {
  std::string corpus;
  int layer = 0;
  std::string tokens;    // kAllTokens or kWithoutNewlines
  double relative = 0;   // mean ‖δ‖/‖y‖ of the probed tokens
  int64_t newlines = 0;  // newline tokens among them
  PolynomialFindings findings = {};
};

// Fills in title, summary, tables and plots, and adds notes.
void DescribeProbe(const std::vector<ProbeRun>& runs, Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_POLYNOMIAL_REPORT_H_
