#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "client/cli/flags.h"
#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/session.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

constexpr char kExamples[] =
    R"(For each token: how many of the layer's consensus neurons fire, which exception neurons fire, and
the norm of what the MLP writes. Without --layer it is the layer with the most consensus neurons.

Examples:
  gatehouse consensus -m novella-gpt2-7m --text "The captain of the ship was an old man."
  gatehouse consensus -m novella-gpt2-7m --text "Call me Ishmael." --layer 7
  gatehouse consensus -m novella-gpt2-7m --text "Call me Ishmael." --json | jq '.texts[0].tokens[4].consensus')";

constexpr int kNormBar = 12;  // columns

using Tokens = std::vector<v1::TokenInsight>;

struct ConsensusCommand {
  std::string model;
  InputFlags input{{}};
  GatingFlags gating;
  std::optional<uint32_t> layer;
  bool raw = false;

  void Declare(CLI::App& app);
  v1::TraceConsensusRequest Build(std::istream& in) const;
  absl::StatusOr<int> Run(Session& session, const v1::TraceConsensusRequest& request) const;
  absl::Status PrintText(const Terminal& terminal, const v1::ConsensusStart& start,
                         const std::vector<Tokens>& texts) const;
  void PrintJson(Session& session, const v1::ConsensusStart& start, const std::vector<Tokens>& texts,
                 const v1::AnalysisSummary& summary) const;
};

void ConsensusCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  input.Add(app);
  gating.Add(app);
  app.add_option("--layer", layer, "The layer whose tokens are listed")->group("Output");
  app.add_flag("--raw", raw, "JSON: add each token's exact bytes in base64")->group("Output");
}

v1::TraceConsensusRequest ConsensusCommand::Build(std::istream& in) const {
  v1::TraceConsensusRequest request;
  request.set_model(model);
  for (v1::TextInput& text : input.Build(in)) *request.add_inputs() = std::move(text);
  *request.mutable_gating() = gating.Build();
  return request;
}

const v1::LayerConsensus* ConsensusAt(const v1::TokenInsight& token, uint32_t layer) {
  const auto found = std::find_if(token.consensus().begin(), token.consensus().end(),
                                  [&](const v1::LayerConsensus& entry) { return entry.layer() == layer; });
  return found == token.consensus().end() ? nullptr : &*found;
}

// "●●●○○ 3/5".
std::string LevelBar(const v1::LayerConsensus* consensus, int of) {
  if (of == 0) return "no consensus neurons";
  if (consensus == nullptr || !consensus->has_level()) return "went linear";
  std::string bar;
  for (int i = 0; i < of; ++i) bar += i < static_cast<int>(consensus->level()) ? "●" : "○";
  return bar + " " + std::to_string(consensus->level()) + "/" + std::to_string(of);
}

std::string ExceptionMarks(const v1::LayerConsensus* consensus) {
  std::string marks;
  if (consensus == nullptr) return marks;
  for (uint32_t neuron : consensus->exceptions_fired()) {
    marks += (marks.empty() ? "✱ " : ", ") + std::to_string(neuron);
  }
  return marks;
}

// As a share of the largest; the first tokens' norms, which dwarf all others, overflow.
std::string NormBar(double norm, double largest) {
  if (!(largest > 0) || std::isnan(norm)) return "";
  const int blocks = std::min(kNormBar, static_cast<int>(std::lround(norm / largest * kNormBar)));
  std::string bar;
  for (int i = 0; i < blocks; ++i) bar += "▪";
  return bar;
}

double NormAt(const v1::TokenInsight& token, size_t layer) {
  return static_cast<int>(layer) < token.output_norm_size() ? token.output_norm(static_cast<int>(layer)) : std::nan("");
}

void PrintTokens(const Terminal& terminal, const Tokens& tokens, const v1::LayerNeurons& neurons) {
  const uint32_t layer = neurons.layer();
  double largest = 0;
  for (const auto& token : tokens) {
    // Sinks (the first four positions) are left out of the scale where others are there.
    if (token.position() >= 4 || tokens.size() <= 4) largest = std::max(largest, NormAt(token, layer));
  }
  Table table({{"position", true}, {"token"}, {"consensus"}, {"exception"}, {"‖y‖", true}, {""}});
  TokenTexts texts;
  const int of = neurons.consensus_size();
  for (const auto& token : tokens) {
    const v1::LayerConsensus* consensus = ConsensusAt(token, layer);
    const bool known = consensus != nullptr && consensus->has_level() && of > 0;
    const Style level_style = known ? LevelCell(static_cast<int>(consensus->level()), of, false).style : kDim;
    const double norm = NormAt(token, layer);
    table.Add({{std::to_string(token.position()), kDim},
               {"\"" + Truncate(texts.Next(token.raw()), 24) + "\"", kPlain},
               {LevelBar(consensus, of), level_style},
               {ExceptionMarks(consensus), {.foreground = 203, .bold = true}},
               {Fixed(norm, norm < 10 ? 2 : 1), kPlain},
               {NormBar(norm, largest), kDim}});
  }
  table.Print(terminal);
}

const v1::LayerNeurons& RichestLayer(const v1::ConsensusStart& start) {
  return *std::max_element(start.layers().begin(), start.layers().end(), [](const auto& a, const auto& b) {
    return std::pair(a.consensus_size(), a.exception_size()) < std::pair(b.consensus_size(), b.exception_size());
  });
}

std::string NeuronList(const google::protobuf::RepeatedField<uint32_t>& neurons) {
  std::string list;
  for (uint32_t neuron : neurons) list += (list.empty() ? "" : ", ") + std::to_string(neuron);
  return list.empty() ? "none" : list;
}

absl::Status ConsensusCommand::PrintText(const Terminal& terminal, const v1::ConsensusStart& start,
                                         const std::vector<Tokens>& texts) const {
  if (start.layers().empty()) return absl::OkStatus();
  if (layer.has_value() && *layer >= static_cast<uint32_t>(start.layers_size())) {
    return absl::InvalidArgumentError("--layer " + std::to_string(*layer) + " is not in [0, " +
                                      std::to_string(start.layers_size()) + ")");
  }
  const v1::LayerNeurons& shown = layer.has_value() ? start.layers(static_cast<int>(*layer)) : RichestLayer(start);
  std::vector<int> sizes;
  for (const auto& neurons : start.layers()) sizes.push_back(neurons.consensus_size());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) terminal.out << "\n";
    std::string title = "Consensus at layer " + std::to_string(shown.layer());
    if (texts.size() > 1) title += ", text " + std::to_string(i + 1) + " of " + std::to_string(texts.size());
    terminal.out << terminal.Paint(kBold, title) << "\n"
                 << terminal.Paint(kDim, "consensus neurons " + NeuronList(shown.consensus()) + " · exception " +
                                             NeuronList(shown.exception()))
                 << "\n";
    PrintTokens(terminal, texts[i], shown);
    terminal.out << "\n" << terminal.Paint(kBold, "Layers × tokens") << "\n";
    PrintConsensusMap(terminal, texts[i], sizes);
  }
  return absl::OkStatus();
}

void ConsensusCommand::PrintJson(Session& session, const v1::ConsensusStart& start, const std::vector<Tokens>& texts,
                                 const v1::AnalysisSummary& summary) const {
  Json json = {{"model", model}, {"calibration", start.calibration()}};
  json["layers"] = Json::array();
  for (const auto& neurons : start.layers()) json["layers"].push_back(ToJson(neurons));
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

absl::StatusOr<int> ConsensusCommand::Run(Session& session, const v1::TraceConsensusRequest& request) const {
  v1::ConsensusStart start;
  std::vector<Tokens> texts(static_cast<size_t>(request.inputs_size()));
  const auto summary =
      session.client.TraceConsensus(request,
                                    {.on_start =
                                         [&](const v1::ConsensusStart& event) {
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

void AddConsensus(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<ConsensusCommand>();
  CLI::App* sub = app.add_subcommand("consensus", "Show which consensus and exception neurons fire at each token");
  command->Declare(*sub);
  sub->footer(kExamples);
  sub->callback([command, &in, &action] {
    action = [command, request = command->Build(in)](Session& session) { return command->Run(session, request); };
  });
}

}  // namespace gatehouse::cli
