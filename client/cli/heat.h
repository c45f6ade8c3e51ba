#ifndef GATEHOUSE_CLIENT_CLI_HEAT_H_
#define GATEHOUSE_CLIENT_CLI_HEAT_H_

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/terminal.h"
#include "gatehouse/v1/analysis.pb.h"

namespace gatehouse::cli {

// One column of a heat strip: a glyph one column wide, and its colour.
struct HeatCell {
  std::string glyph;
  Style style;
};

struct HeatRow {
  std::string label;
  std::vector<HeatCell> cells;
};

// Prints rows of equal length under a ruler of positions, in as many bands as the
// terminal's width needs.  Positions count from `first_position`.
void PrintHeatMap(const Terminal& terminal, const std::vector<HeatRow>& rows, int first_position = 0);

// Where a nonlinearity score lies among the calibration's tokens, in [0, 1]: exact at
// the percentiles, straight lines between them.  NaN for NaN.
double PercentileOf(const v1::NonlinearityPercentiles& percentiles, double score);

// A block whose height and colour show a value in [0, 1]; "·" for NaN.
HeatCell HeightCell(double value);
// The same for a percentile, with the colours of the papers' regimes: linear below 25,
// barely nonlinear 50 to 70, high above 95.
HeatCell PercentileCell(double percentile);
// What one token's MLP did in one layer.
HeatCell PathCell(v1::MlpPath path);
// How many of a layer's consensus neurons fire; marked where exception neurons do.
HeatCell LevelCell(int level, int of, bool exception);

// The colour of a percentile as a background behind text.
Style PercentileBackground(double percentile);

std::string PercentileLegend(const Terminal& terminal);
std::string PathLegend(const Terminal& terminal);
std::string LevelLegend(const Terminal& terminal);

// A token's text on one line, as it is shown among others.  Bytes of a character that
// a later token completes are carried over to that token.
class TokenTexts {
 public:
  std::string Next(std::string_view raw);

 private:
  std::string carry_;
};

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_HEAT_H_
