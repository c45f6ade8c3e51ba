#include <CLI/App.hpp>
#include <cmath>
#include <optional>

#include "client/cli/analysis.h"
#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kNonlinearityExamples[] =
    R"(The text is shown with each token coloured by where its score lies among the calibration's tokens,
at one layer; below it, every layer. Without --layer it is the layer with the most tokens above
the calibration's 95th percentile.

Examples:
  gatehouse nonlinearity -m novella-gpt2-7m --text "The captain of the ship was an old man."
  gatehouse nonlinearity -m novella-gpt2-7m --file chapter.txt --layer 5
  gatehouse nonlinearity -m novella-gpt2-7m --text "Call me Ishmael." --json | jq '.texts[0].tokens')";

using Percentiles = std::vector<v1::NonlinearityPercentiles>;

double ScoreAt(const v1::TokenInsight& token, size_t layer) {
  return static_cast<int>(layer) < token.nonlinearity_size() ? token.nonlinearity(static_cast<int>(layer))
                                                             : std::nan("");
}

size_t MostNonlinearLayer(const Percentiles& layers, const std::vector<InsightList>& texts) {
  size_t best = 0, most = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    size_t high = 0;
    for (const InsightList& tokens : texts) {
      for (const auto& token : tokens) high += ScoreAt(token, layer) > layers[layer].p95() ? 1 : 0;
    }
    if (high > most) best = layer, most = high;
  }
  return best;
}

// The text, wrapped at the terminal's width, each token in the colour of its score; and
// where there are no colours, blocks under it.
void PrintColouredText(const Terminal& terminal, const InsightList& tokens,
                       const v1::NonlinearityPercentiles& percentiles, size_t layer) {
  std::string line, blocks;
  int used = 0;
  const auto flush = [&] {
    terminal.out << line << "\n";
    if (!terminal.out_color) terminal.out << blocks << "\n";
    line.clear();
    blocks.clear();
    used = 0;
  };
  TokenTexts texts;
  for (const auto& token : tokens) {
    std::string text = texts.Next(token.raw());
    const double percentile = PercentileOf(percentiles, ScoreAt(token, layer));
    if (used > 0 && used + DisplayWidth(text) > terminal.width) flush();
    text = Truncate(text, terminal.width);
    line += terminal.Paint(PercentileBackground(percentile), text);
    const int width = DisplayWidth(text);
    for (int i = 0; i < width; ++i) blocks += PercentileCell(percentile).glyph;
    used += width;
    if (text.ends_with("⏎")) flush();
  }
  if (used > 0) flush();
}

void Show(const Terminal& terminal, const Analysis<v1::NonlinearityStart>& analysis, std::optional<uint32_t> layer) {
  const Percentiles layers(analysis.start.layers().begin(), analysis.start.layers().end());
  const size_t shown = layer.has_value() ? *layer : MostNonlinearLayer(layers, analysis.texts);
  for (size_t i = 0; i < analysis.texts.size(); ++i) {
    if (i > 0) terminal.out << "\n";
    const std::string title = AnalysisTitle("Nonlinearity", static_cast<uint32_t>(shown), i, analysis.texts.size());
    terminal.out << terminal.Paint(kBold, title) << "\n";
    PrintColouredText(terminal, analysis.texts[i], layers[shown], shown);
    terminal.out << "\n" << terminal.Paint(kBold, "Layers × tokens") << "\n";
    PrintNonlinearityMap(terminal, analysis.texts[i], layers);
  }
}

}  // namespace

void AddNonlinearity(CLI::App& app, std::istream& in, Action& action) {
  CLI::App* sub = app.add_subcommand("nonlinearity", "Show how nonlinear each token is, layer by layer");
  sub->footer(kNonlinearityExamples);
  AddAnalysis<v1::ScoreNonlinearityRequest, v1::NonlinearityStart>(
      sub, in, action, "The layer whose scores colour the text", &client::Client::ScoreNonlinearity, Show);
}

}  // namespace gatehouse::cli
