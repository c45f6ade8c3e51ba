#include <CLI/App.hpp>
#include <cmath>
#include <memory>

#include "client/cli/flags.h"
#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kExamples[] =
    R"(The text is shown with each token coloured by where its score lies among the calibration's tokens,
at one layer; below it, every layer. Without --layer it is the layer with the most tokens above
the calibration's 95th percentile.

Examples:
  gatehouse nonlinearity -m novella-gpt2-7m --text "The captain of the ship was an old man."
  gatehouse nonlinearity -m novella-gpt2-7m --file chapter.txt --layer 5
  gatehouse nonlinearity -m novella-gpt2-7m --text "Call me Ishmael." --json | jq '.texts[0].tokens')";

using Percentiles = std::vector<v1::NonlinearityPercentiles>;
using Tokens = std::vector<v1::TokenInsight>;

struct NonlinearityCommand {
  std::string model;
  InputFlags input{{}};
  GatingFlags gating;
  std::optional<uint32_t> layer;
  bool raw = false;

  void Declare(CLI::App& app);
  v1::ScoreNonlinearityRequest Build(std::istream& in) const;
  absl::StatusOr<int> Run(Session& session, const v1::ScoreNonlinearityRequest& request) const;
  absl::Status PrintText(const Terminal& terminal, const v1::NonlinearityStart& start,
                         const std::vector<Tokens>& texts) const;
  void PrintJson(Session& session, const v1::NonlinearityStart& start, const std::vector<Tokens>& texts,
                 const v1::AnalysisSummary& summary) const;
};

void NonlinearityCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  input.Add(app);
  gating.Add(app);
  app.add_option("--layer", layer, "The layer whose scores colour the text")->group("Output");
  app.add_flag("--raw", raw, "JSON: add each token's exact bytes in base64")->group("Output");
}

v1::ScoreNonlinearityRequest NonlinearityCommand::Build(std::istream& in) const {
  v1::ScoreNonlinearityRequest request;
  request.set_model(model);
  for (v1::TextInput& text : input.Build(in)) *request.add_inputs() = std::move(text);
  *request.mutable_gating() = gating.Build();
  return request;
}

double ScoreAt(const v1::TokenInsight& token, size_t layer) {
  return static_cast<int>(layer) < token.nonlinearity_size() ? token.nonlinearity(static_cast<int>(layer))
                                                             : std::nan("");
}

size_t MostNonlinearLayer(const Percentiles& layers, const std::vector<Tokens>& texts) {
  size_t best = 0, most = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    size_t high = 0;
    for (const Tokens& tokens : texts) {
      for (const auto& token : tokens) high += ScoreAt(token, layer) > layers[layer].p95() ? 1 : 0;
    }
    if (high > most) best = layer, most = high;
  }
  return best;
}

// The text, wrapped at the terminal's width, each token in the colour of its score; and
// where there are no colours, blocks under it.
void PrintColouredText(const Terminal& terminal, const Tokens& tokens, const v1::NonlinearityPercentiles& percentiles,
                       size_t layer) {
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

absl::Status NonlinearityCommand::PrintText(const Terminal& terminal, const v1::NonlinearityStart& start,
                                            const std::vector<Tokens>& texts) const {
  const Percentiles layers(start.layers().begin(), start.layers().end());
  if (layer.has_value() && *layer >= layers.size()) {
    return absl::InvalidArgumentError("--layer " + std::to_string(*layer) + " is not in [0, " +
                                      std::to_string(layers.size()) + ")");
  }
  if (layers.empty()) return absl::OkStatus();
  const size_t shown = layer.has_value() ? *layer : MostNonlinearLayer(layers, texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) terminal.out << "\n";
    std::string title = "Nonlinearity at layer " + std::to_string(shown);
    if (texts.size() > 1) title += ", text " + std::to_string(i + 1) + " of " + std::to_string(texts.size());
    terminal.out << terminal.Paint(kBold, title) << "\n";
    PrintColouredText(terminal, texts[i], layers[shown], shown);
    terminal.out << "\n" << terminal.Paint(kBold, "Layers × tokens") << "\n";
    PrintNonlinearityMap(terminal, texts[i], layers);
  }
  return absl::OkStatus();
}

void NonlinearityCommand::PrintJson(Session& session, const v1::NonlinearityStart& start,
                                    const std::vector<Tokens>& texts, const v1::AnalysisSummary& summary) const {
  Json json = {{"model", model}, {"calibration", start.calibration()}};
  json["layers"] = Json::array();
  for (const auto& percentiles : start.layers()) json["layers"].push_back(ToJson(percentiles));
  json["texts"] = Json::array();
  for (const Tokens& tokens : texts) {
    Json list = Json::array();
    for (const auto& token : tokens) list.push_back(ToJson(token, raw));
    json["texts"].push_back(Json{{"tokens", std::move(list)}});
  }
  json["token_count"] = summary.tokens();
  json["routing"] = ToJson(summary.routing());
  json["timing"] = {{"seconds", Number(summary.seconds())}};
  session.Print(json);
}

absl::StatusOr<int> NonlinearityCommand::Run(Session& session, const v1::ScoreNonlinearityRequest& request) const {
  v1::NonlinearityStart start;
  std::vector<Tokens> texts(static_cast<size_t>(request.inputs_size()));
  const auto summary =
      session.client.ScoreNonlinearity(request,
                                       {.on_start =
                                            [&](const v1::NonlinearityStart& event) {
                                              start = event;
                                              return true;
                                            },
                                        .on_tokens =
                                            [&](const v1::InsightTokens& more) {
                                              if (more.input() >= texts.size()) return false;
                                              Tokens& text = texts[more.input()];
                                              text.insert(text.end(), more.tokens().begin(), more.tokens().end());
                                              return true;
                                            }},
                                       session.call);
  if (!summary.ok()) return summary.status();
  if (session.json) {
    PrintJson(session, start, texts, *summary);
    return kExitOk;
  }
  if (absl::Status status = PrintText(session.terminal, start, texts); !status.ok()) return status;
  const Terminal& terminal = session.terminal;
  terminal.err << terminal.PaintError(kDim,
                                      Joined({Count(summary->tokens(), "token"), Fixed(summary->seconds(), 2) + " s",
                                              "calibration " + OneLine(start.calibration())}))
               << "\n";
  PrintNotes(terminal, summary->routing());
  return kExitOk;
}

}  // namespace

void AddNonlinearity(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<NonlinearityCommand>();
  CLI::App* sub = app.add_subcommand("nonlinearity", "Show how nonlinear each token is, layer by layer");
  command->Declare(*sub);
  sub->footer(kExamples);
  sub->callback([command, &in, &action] {
    action = [command, request = command->Build(in)](Session& session) { return command->Run(session, request); };
  });
}

}  // namespace gatehouse::cli
