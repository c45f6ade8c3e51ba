#include "client/cli/heat.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "client/utf8.h"

namespace gatehouse::cli {
namespace {

constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// From cold to hot, and the text colour that reads well on each.
struct Shade {
  double below;
  int color;
  int background;
};
constexpr std::array<Shade, 5> kShades = {{{0.25, 67, 24},      // linear
                                           {0.50, 73, 30},      // in between
                                           {0.70, 179, 94},     // barely nonlinear
                                           {0.95, 173, 130},    // nonlinear
                                           {1.01, 203, 160}}};  // high

const Shade& ShadeOf(double percentile) {
  return *std::find_if(kShades.begin(), kShades.end() - 1, [&](const Shade& s) { return percentile < s.below; });
}

std::string Ruler(size_t begin, size_t end, int first_position) {
  std::string ruler;
  for (size_t i = begin; i < end;) {
    const std::string mark = std::to_string(static_cast<int>(i) + first_position);
    const size_t next = std::min(end, (i / 10 + 1) * 10);
    if (i % 10 == 0 && mark.size() < 10) {
      ruler += mark.substr(0, next - i);
      ruler += std::string(next - i - std::min(mark.size(), next - i), ' ');
    } else {
      ruler += std::string(next - i, ' ');
    }
    i = next;
  }
  while (ruler.ends_with(' ')) ruler.pop_back();
  return ruler;
}

}  // namespace

void PrintHeatMap(const Terminal& terminal, const std::vector<HeatRow>& rows, int first_position) {
  if (rows.empty()) return;
  int label_width = 0;
  for (const HeatRow& row : rows) label_width = std::max(label_width, DisplayWidth(row.label));
  // Bands begin at multiples of ten, so that the ruler's marks stand where one expects them.
  const int room = std::max(10, (terminal.width - label_width - 1) / 10 * 10);
  const size_t columns = rows.front().cells.size();
  for (size_t begin = 0; begin < columns; begin += static_cast<size_t>(room)) {
    const size_t end = std::min(columns, begin + static_cast<size_t>(room));
    if (begin > 0) terminal.out << "\n";
    terminal.out << std::string(static_cast<size_t>(label_width) + 1, ' ')
                 << terminal.Paint(kDim, Ruler(begin, end, first_position)) << "\n";
    for (const HeatRow& row : rows) {
      terminal.out << terminal.Paint(kDim, PadLeft(row.label, label_width)) << " ";
      for (size_t i = begin; i < end; ++i) terminal.out << terminal.Paint(row.cells[i].style, row.cells[i].glyph);
      terminal.out << "\n";
    }
  }
}

double PercentileOf(const v1::NonlinearityPercentiles& percentiles, double score) {
  if (std::isnan(score)) return score;
  const std::array<std::pair<double, double>, 5> knots = {{{0, 0},
                                                           {percentiles.p25(), 0.25},
                                                           {percentiles.p50(), 0.50},
                                                           {percentiles.p70(), 0.70},
                                                           {percentiles.p95(), 0.95}}};
  for (size_t i = 1; i < knots.size(); ++i) {
    const auto& [low, low_share] = knots[i - 1];
    const auto& [high, high_share] = knots[i];
    if (score < high) return low_share + (high_share - low_share) * (std::max(score, low) - low) / (high - low);
  }
  // Above P95 nothing is known; come near 1 as the score grows.
  return score > 0 ? 1 - 0.05 * percentiles.p95() / score : 0.95;
}

HeatCell HeightCell(double value) {
  if (std::isnan(value)) return {"·", kDim};
  return {kBlocks[static_cast<size_t>(std::clamp(value * 8, 0.0, 7.0))], kPlain};
}

HeatCell PercentileCell(double percentile) {
  HeatCell cell = HeightCell(percentile);
  if (!std::isnan(percentile)) cell.style = {.foreground = ShadeOf(percentile).color, .bold = percentile >= 0.95};
  return cell;
}

HeatCell PathCell(v1::MlpPath path) {
  switch (path) {
    case v1::MLP_PATH_FULL:
      return {"█", {.foreground = 173}};
    case v1::MLP_PATH_LINEAR:
      return {"░", {.foreground = 67}};
    case v1::MLP_PATH_LADDER:
      return {"▒", {.foreground = 179}};
    case v1::MLP_PATH_SKIP:
      return {"✕", kDim};
    default:
      return {"·", kDim};
  }
}

HeatCell LevelCell(int level, int of, bool exception) {
  if (level < 0 || of <= 0) return {"·", kDim};
  const double share = static_cast<double>(level) / of;
  HeatCell cell = HeightCell(share);
  // Many firing means agreement, hence little to do: cold.  Few is hot.
  cell.style.foreground = ShadeOf(1 - share).color;
  if (exception) cell = {"✱", {.foreground = 203, .bold = true}};
  return cell;
}

Style PercentileBackground(double percentile) {
  if (std::isnan(percentile)) return kDim;
  return {.foreground = 255, .background = ShadeOf(percentile).background};
}

std::string PercentileLegend(const Terminal& terminal) {
  const auto item = [&](double percentile, const char* meaning) {
    const HeatCell cell = PercentileCell(percentile);
    return terminal.Paint(cell.style, cell.glyph) + " " + meaning;
  };
  return item(0.15, "linear (<P25)") + "   " + item(0.40, "P25–P50") + "   " +
         item(0.60, "barely nonlinear (P50–P70)") + "   " + item(0.80, "P70–P95") + "   " + item(0.98, "high (>P95)") +
         "   · not in full";
}

std::string PathLegend(const Terminal& terminal) {
  const HeatCell full = PathCell(v1::MLP_PATH_FULL), linear = PathCell(v1::MLP_PATH_LINEAR),
                 ladder = PathCell(v1::MLP_PATH_LADDER), skip = PathCell(v1::MLP_PATH_SKIP);
  return terminal.Paint(full.style, full.glyph) + " full   " + terminal.Paint(ladder.style, ladder.glyph) +
         " ladder   " + terminal.Paint(linear.style, linear.glyph) + " linear   " +
         terminal.Paint(skip.style, skip.glyph) + " skipped";
}

std::string LevelLegend(const Terminal& terminal) {
  const HeatCell none = LevelCell(0, 7, false), all = LevelCell(7, 7, false), exception = LevelCell(0, 7, true);
  return terminal.Paint(none.style, none.glyph) + " none fire   " + terminal.Paint(all.style, all.glyph) +
         " all fire   " + terminal.Paint(exception.style, exception.glyph) + " exception neuron fires   · not in full";
}

std::string TokenTexts::Next(std::string_view raw) {
  carry_.append(raw);
  std::string_view whole = carry_;
  size_t used = 0;
  while (used < whole.size()) {
    const client::Utf8Step step = client::NextUtf8(whole.substr(used));
    if (step.incomplete) break;
    used += step.length;
  }
  std::string text = OneLine(whole.substr(0, used));
  carry_.erase(0, used);
  return text;
}

}  // namespace gatehouse::cli
