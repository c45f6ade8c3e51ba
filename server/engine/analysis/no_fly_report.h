#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_NO_FLY_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_NO_FLY_REPORT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/engine/analysis/token_damage.h"
#include "server/engine/report.h"

namespace gatehouse {

// What a study of no-fly lists (methods A.5) found, as tables.

// One list, judged by a text.
struct AgreementRow {
  std::string lister, judge, series;
  int layer = 0;
  double listed_by_chance = 0;
  Agreement agreement = {};

  double FlippedShare() const {
    return agreement.judged > 0 ? agreement.flipped / agreement.judged : std::numeric_limits<double>::quiet_NaN();
  }
  bool OneText() const { return lister == judge; }
};

struct ListedRow {
  std::string corpus, token_is;
  int layer = 0;
  int32_t token = 0;
  std::string text;
  TokenMean mean = {};
};

struct ScatterRow {
  int32_t token = 0;
  std::string text, list;
  TokenMean first = {}, second = {};
};

// token_is: "target" or "processed".
ReportTable AgreementTable(const std::vector<AgreementRow>& rows, const std::string& token_is);
ReportTable ListedTable(const std::vector<ListedRow>& rows);
// first, second: the names of the texts.
ReportTable ScatterTable(const std::vector<ScatterRow>& rows, const std::string& name, const std::string& first,
                         const std::string& second, int layer);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_NO_FLY_REPORT_H_
