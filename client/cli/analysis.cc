#include "client/cli/analysis.h"

#include "client/cli/render.h"

namespace gatehouse::cli {

void AnalysisFlags::Declare(CLI::App& app, const char* layer_help) {
  AddModelFlag(app, model);
  input.Add(app);
  gating.Add(app);
  app.add_option("--layer", layer, layer_help)->group("Output");
  app.add_flag("--raw", raw, "JSON: add each token's exact bytes in base64")->group("Output");
}

absl::Status CheckLayer(const std::optional<uint32_t>& layer, int layers) {
  if (!layer.has_value() || *layer < static_cast<uint32_t>(layers)) return absl::OkStatus();
  return absl::InvalidArgumentError("--layer " + std::to_string(*layer) + " is not in [0, " + std::to_string(layers) +
                                    ")");
}

std::string AnalysisTitle(const char* what, uint32_t layer, size_t text, size_t texts) {
  std::string title = std::string(what) + " at layer " + std::to_string(layer);
  if (texts > 1) title += ", text " + std::to_string(text + 1) + " of " + std::to_string(texts);
  return title;
}

void PrintAnalysisSummary(const Terminal& terminal, const std::string& calibration,
                          const v1::AnalysisSummary& summary) {
  const std::string line = Joined(
      {Count(summary.tokens(), "token"), Fixed(summary.seconds(), 2) + " s", "calibration " + OneLine(calibration)});
  terminal.err << terminal.PaintError(kDim, line) << "\n";
  PrintNotes(terminal, summary.routing());
}

}  // namespace gatehouse::cli
