#include "server/engine/analysis/no_fly_report.h"

#include "server/base/strings.h"
#include "server/engine/analysis/report_columns.h"

namespace gatehouse {

ReportTable AgreementTable(const std::vector<AgreementRow>& rows, const std::string& token_is) {
  using Row = AgreementRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      StrCat("agreement_", token_is),
      StrCat("Lists by ", token_is, " token, and who agrees"),
      "The list of one text at one layer, judged by another with its own surrogate. Where both are one text, the "
      "halves of its blocks list and judge: what chance alone flips (means over 20 splits).",
      {column("lister", "the text that lists", [](const Row& row) { return row.lister; }),
       column("judge", "the text that judges", [](const Row& row) { return row.judge; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("listed", "tokens the lister's rule names", [](const Row& row) { return row.agreement.listed; }),
       column("listed_by_chance", "mean number it names with δCE shuffled among the whole text's occurrences",
              [](const Row& row) { return row.listed_by_chance; }),
       column("judged", "listed tokens that the judge has often enough",
              [](const Row& row) { return row.agreement.judged; }),
       column("flipped", "judged tokens whose mean is below 0 on the judge",
              [](const Row& row) { return row.agreement.flipped; }),
       column("flipped_share", "flipped / judged", [](const Row& row) { return row.FlippedShare(); }),
       column("r_listed", "Pearson's r of the two texts' means over the judged tokens",
              [](const Row& row) { return row.agreement.r_listed; }),
       column("shared", "tokens that both texts have often enough",
              [](const Row& row) { return row.agreement.shared; }),
       column("r_shared", "Pearson's r over the shared tokens", [](const Row& row) { return row.agreement.r_shared; }),
       column("reliability_lister", "split-half reliability of the lister's means over the shared tokens",
              [](const Row& row) { return row.agreement.reliability_first; }),
       column("reliability_judge", "the same of the judge's",
              [](const Row& row) { return row.agreement.reliability_second; }),
       column("ceiling", "the square root of their product: the most that noise lets r_shared be expected to be",
              [](const Row& row) { return row.agreement.ceiling; }),
       column("r_of_ceiling", "r_shared / ceiling",
              [](const Row& row) { return row.agreement.r_shared / row.agreement.ceiling; }),
       column("series", "who lists and who judges, for plots", [](const Row& row) { return row.series; })}};
}

ReportTable ListedTable(const std::vector<ListedRow>& rows) {
  using Row = ListedRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      "listed",
      "The lists",
      "Tokens that a linear layer harms on a text, by its rule; the largest mean first.",
      {column("corpus", "the text that lists", [](const Row& row) { return row.corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("token_is", "target: what is predicted; processed: what the MLP reads",
              [](const Row& row) { return row.token_is; }),
       column("token", "id of the token", [](const Row& row) { return row.token; }),
       column("text", "the token", [](const Row& row) { return row.text; }),
       column("mean", "mean δCE in nats", [](const Row& row) { return row.mean.mean; }),
       column("count", "occurrences", [](const Row& row) { return row.mean.count; }),
       column("positive", "share of occurrences with δCE above 0", [](const Row& row) { return row.mean.positive; })}};
}

ReportTable ScatterTable(const std::vector<ScatterRow>& rows, const std::string& name, const std::string& first,
                         const std::string& second, int layer) {
  using Row = ScatterRow;
  const auto column = [&](const char* name, const std::string& description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      name,
      StrCat("Target tokens of ", first, " and ", second, " at layer ", layer),
      "Mean δCE of every target token that both texts have often enough, the commonest first.",
      {column("token", "id of the token", [](const Row& row) { return row.token; }),
       column("text", "the token", [](const Row& row) { return row.text; }),
       column("mean_first", StrCat("mean δCE in nats on ", first), [](const Row& row) { return row.first.mean; }),
       column("mean_second", StrCat("mean δCE in nats on ", second), [](const Row& row) { return row.second.mean; }),
       column("count_first", StrCat("occurrences on ", first), [](const Row& row) { return row.first.count; }),
       column("count_second", StrCat("occurrences on ", second), [](const Row& row) { return row.second.count; }),
       column("list", "which text lists it", [](const Row& row) { return row.list; })}};
}

}  // namespace gatehouse
