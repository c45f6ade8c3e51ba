#include "server/engine/analysis/polynomial_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "absl/strings/str_format.h"
#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

constexpr double kSame = 0.01;  // R² closer than this to the best is as good

// One polynomial of one run.
struct FitRow {
  const ProbeRun* run;
  const PolynomialFinding* fit;
};

// What one run comes to.
struct SummaryRow {
  const ProbeRun* run;
  const PolynomialFinding* line = nullptr;   // degree 1
  const PolynomialFinding* best = nullptr;   // of all, tuned; null where nothing was fitted
  const PolynomialFinding* least = nullptr;  // the least degree that is as good, powers before products

  // Of the best, only where its R² is told from 0.
  int Degree() const { return best != nullptr && best->tuned_r2.low > 0 ? least->degree : 0; }
  double Gain() const { return best == nullptr ? kNone : best->tuned_r2.estimate - line->tuned_r2.estimate; }
};

SummaryRow SummaryOf(const ProbeRun& run) {
  SummaryRow row{&run};
  for (const PolynomialFinding& fit : run.findings.rows) {
    if (fit.degree == 1 && !fit.products) row.line = &fit;
    if (row.best == nullptr || fit.tuned_r2.estimate > row.best->tuned_r2.estimate) row.best = &fit;
  }
  for (const PolynomialFinding& fit : run.findings.rows) {
    if (!(fit.tuned_r2.estimate >= row.best->tuned_r2.estimate - kSame)) continue;
    if (row.least == nullptr || fit.degree < row.least->degree) row.least = &fit;
  }
  return row;
}

bool SeveralCorpora(const std::vector<ProbeRun>& runs) { return runs.front().corpus != runs.back().corpus; }

std::string SeriesOf(const ProbeRun& run, bool several) {
  return StrCat("layer ", run.layer, run.tokens == kAllTokens ? "" : StrCat(", ", run.tokens),
                several ? StrCat(", ", run.corpus) : "");
}

ReportTable FitTable(const std::vector<ProbeRun>& runs, bool products) {
  using Row = FitRow;
  std::vector<FitRow> rows;
  for (const ProbeRun& run : runs) {
    for (const PolynomialFinding& fit : run.findings.rows) {
      if (fit.products == products) rows.push_back({&run, &fit});
    }
  }
  const bool several = SeveralCorpora(runs);
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      products ? "products" : "powers",
      products ? "Powers and all products of two coordinates" : "Powers of each coordinate alone",
      "R² of δ on test blocks after fitting a polynomial of each degree. Degree 1 is a second linear map, fitted on "
      "the most nonlinear tokens alone: what it explains is no curvature.",
      {column("corpus", "the text", [](const Row& row) { return row.run->corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.run->layer; }),
       column("tokens", "which tokens were probed", [](const Row& row) { return row.run->tokens; }),
       column("degree", "of the polynomial", [](const Row& row) { return row.fit->degree; }),
       column("features", "how many it has", [](const Row& row) { return row.fit->features; }),
       column("r2", "R² on test tokens at the ridge that was asked for",
              [](const Row& row) { return row.fit->r2.estimate; }),
       column("r2_low", "lower end of its 95 % interval", [](const Row& row) { return row.fit->r2.low; }),
       column("r2_high", "upper end of its 95 % interval", [](const Row& row) { return row.fit->r2.high; }),
       column("r2_train", "R² on the tokens it was fitted on: far above r2, it has learnt them by heart",
              [](const Row& row) { return row.fit->r2_train; }),
       column("shuffled", "the control: R² on test tokens after fitting to the δ of other tokens",
              [](const Row& row) { return row.fit->shuffled; }),
       column("tuned", "the multiple of the ridge, of 1, 30, 1,000 and 30,000, that did best on tuning blocks",
              [](const Row& row) { return row.fit->tuned; }),
       column("tuned_r2", "R² on test tokens at that ridge", [](const Row& row) { return row.fit->tuned_r2.estimate; }),
       column("tuned_r2_low", "lower end of its 95 % interval", [](const Row& row) { return row.fit->tuned_r2.low; }),
       column("tuned_r2_high", "upper end of its 95 % interval", [](const Row& row) { return row.fit->tuned_r2.high; }),
       column("series", "the layer, for plots", [&](const Row& row) { return SeriesOf(*row.run, several); })}};
}

ReportTable SummaryTable(const std::vector<SummaryRow>& rows, const bool several) {
  using Row = SummaryRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  const auto of_best = [](const Row& row, auto what) { return row.best == nullptr ? kNone : what(*row.best); };
  return {"layers",
          "What a polynomial explains in each layer",
          "The best of all polynomials, each at its tuned ridge.",
          {column("corpus", "the text", [](const Row& row) { return row.run->corpus; }),
           column("layer", "index of the layer", [](const Row& row) { return row.run->layer; }),
           column("tokens", "which tokens were probed", [](const Row& row) { return row.run->tokens; }),
           column("train_tokens", "tokens fitted on", [](const Row& row) { return row.run->findings.train_tokens; }),
           column("test_tokens", "tokens judged on", [](const Row& row) { return row.run->findings.test_tokens; }),
           column("newlines", "newline tokens among them", [](const Row& row) { return row.run->newlines; }),
           column("relative", "mean ‖δ‖/‖y‖ of the probed tokens", [](const Row& row) { return row.run->relative; }),
           column("variance", "share of the inputs' variance in the components",
                  [](const Row& row) { return row.run->findings.variance; }),
           column("linear_r2", "R² of degree 1",
                  [](const Row& row) { return row.line == nullptr ? kNone : row.line->tuned_r2.estimate; }),
           column("best_r2", "R² of the best polynomial",
                  [&](const Row& row) { return of_best(row, [](const auto& fit) { return fit.tuned_r2.estimate; }); }),
           column("best_r2_low", "lower end of its 95 % interval",
                  [&](const Row& row) { return of_best(row, [](const auto& fit) { return fit.tuned_r2.low; }); }),
           column("best_r2_high", "upper end of its 95 % interval",
                  [&](const Row& row) { return of_best(row, [](const auto& fit) { return fit.tuned_r2.high; }); }),
           column("gain", "best_r2 − linear_r2: what curvature explains", [](const Row& row) { return row.Gain(); }),
           column("degree", "the least degree within 0.01 of the best R²; 0 where that is not told from 0",
                  [](const Row& row) { return row.Degree(); }),
           column("series", "the tokens, for plots", [several](const Row& row) {
             return several ? StrCat(row.run->tokens, ", ", row.run->corpus) : row.run->tokens;
           })}};
}

std::string Summarize(const std::vector<SummaryRow>& rows) {
  std::string summary;
  for (const char* const tokens : {kAllTokens, kWithoutNewlines}) {
    std::vector<const SummaryRow*> of;
    for (const SummaryRow& row : rows) {
      if (row.run->tokens == tokens && row.best != nullptr) of.push_back(&row);
    }
    if (of.empty()) continue;
    const auto best = *std::max_element(of.begin(), of.end(), [](const auto* a, const auto* b) {
      return a->best->tuned_r2.estimate < b->best->tuned_r2.estimate;
    });
    const auto gain =
        *std::max_element(of.begin(), of.end(), [](const auto* a, const auto* b) { return a->Gain() < b->Gain(); });
    const auto& r2 = best->best->tuned_r2;
    summary +=
        StrCat(summary.empty() ? "" : " ",
               tokens == std::string_view(kAllTokens) ? "Over all probed tokens" : "Without newline tokens",
               ", polynomials explain most of what the surrogate leaves over in layer ", best->run->layer, ": R² ",
               absl::StrFormat("%.3f [%.3f, %.3f]", r2.estimate, r2.low, r2.high),
               ", where a second linear map explains ", absl::StrFormat("%.3f", best->line->tuned_r2.estimate),
               ". Curvature adds most in layer ", gain->run->layer, ": ", absl::StrFormat("%+.3f", gain->Gain()), ".");
  }
  return summary.empty() ? "Too few tokens to fit anything." : summary;
}

}  // namespace

void DescribeProbe(const std::vector<ProbeRun>& runs, Report& report) {
  report.title = "Is what a line leaves over a polynomial?";
  std::vector<SummaryRow> rows;
  for (const ProbeRun& run : runs) rows.push_back(SummaryOf(run));
  report.summary = Summarize(rows);
  report.notes.emplace_back(
      "A polynomial of degree q has the powers 1 to q of each principal coordinate and, in the second table, all "
      "products of two coordinates. Products of three coordinates or more, and of powers above the first, are not "
      "seen.");
  report.notes.emplace_back(
      "A negative R² says that the mean of the training tokens predicts better than the polynomial: with few tokens a "
      "feature, or features that grow fast, the ridge of 1 does not hold it. tuned_r2 gives each polynomial the "
      "ridge that suits it.");
  report.tables = {SummaryTable(rows, SeveralCorpora(runs)), FitTable(runs, true), FitTable(runs, false)};
  const auto by_degree = [](const char* table, const char* title, const char* caption) {
    return ReportPlot{.kind = ReportPlot::Kind::kLine,
                      .title = title,
                      .caption = caption,
                      .table = table,
                      .x = "degree",
                      .y = "tuned_r2",
                      .low = "tuned_r2_low",
                      .high = "tuned_r2_high",
                      .series = "series",
                      .label = ""};
  };
  report.plots = {{.kind = ReportPlot::Kind::kBar,
                   .title = "What a polynomial explains in each layer",
                   .caption = "R² of the best polynomial on test tokens; bars of 95 %.",
                   .table = "layers",
                   .x = "layer",
                   .y = "best_r2",
                   .low = "best_r2_low",
                   .high = "best_r2_high",
                   .series = "series",
                   .label = ""},
                  {.kind = ReportPlot::Kind::kBar,
                   .title = "What curvature adds",
                   .caption = "R² of the best polynomial less that of a second linear map.",
                   .table = "layers",
                   .x = "layer",
                   .y = "gain",
                   .low = "",
                   .high = "",
                   .series = "series",
                   .label = ""},
                  by_degree("products", "By degree, with products", "R² on test tokens at the tuned ridge."),
                  by_degree("powers", "By degree, powers alone", "R² on test tokens at the tuned ridge.")};
}

}  // namespace gatehouse
