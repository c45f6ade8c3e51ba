#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <optional>

#include "client/cli/analysis.h"
#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/session.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

constexpr char kConsensusExamples[] =
    R"(For each token: how many of the layer's consensus neurons fire, which exception neurons fire, and
the norm of what the MLP writes. Without --layer it is the layer with the most consensus neurons.

Examples:
  gatehouse consensus -m novella-gpt2-7m --text "The captain of the ship was an old man."
  gatehouse consensus -m novella-gpt2-7m --text "Call me Ishmael." --layer 7
  gatehouse consensus -m novella-gpt2-7m --text "Call me Ishmael." --json | jq '.texts[0].tokens[4].consensus')";

constexpr int kNormBar = 12;  // columns

const v1::LayerConsensus* ConsensusAt(const v1::TokenInsight& token, uint32_t layer) {
  const auto found = std::find_if(token.consensus().begin(), token.consensus().end(),
                                  [&](const v1::LayerConsensus& entry) { return entry.layer() == layer; });
  return found == token.consensus().end() ? nullptr : &*found;
}

// "●●●○○ 3/5".
std::string LevelBar(const v1::LayerConsensus* consensus, int of) {
  if (of == 0) return "no consensus neurons";
  if (consensus == nullptr || !consensus->has_level()) return "not in full";
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

void PrintTokens(const Terminal& terminal, const InsightList& tokens, const v1::LayerNeurons& neurons) {
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

void Show(const Terminal& terminal, const Analysis<v1::ConsensusStart>& analysis, std::optional<uint32_t> layer) {
  const v1::ConsensusStart& start = analysis.start;
  const v1::LayerNeurons& shown = layer.has_value() ? start.layers(static_cast<int>(*layer)) : RichestLayer(start);
  std::vector<int> sizes;
  for (const auto& neurons : start.layers()) sizes.push_back(neurons.consensus_size());
  for (size_t i = 0; i < analysis.texts.size(); ++i) {
    if (i > 0) terminal.out << "\n";
    terminal.out << terminal.Paint(kBold, AnalysisTitle("Consensus", shown.layer(), i, analysis.texts.size())) << "\n"
                 << terminal.Paint(kDim, "consensus neurons " + NeuronList(shown.consensus()) + " · exception " +
                                             NeuronList(shown.exception()))
                 << "\n";
    PrintTokens(terminal, analysis.texts[i], shown);
    terminal.out << "\n" << terminal.Paint(kBold, "Layers × tokens") << "\n";
    PrintConsensusMap(terminal, analysis.texts[i], sizes);
  }
}

}  // namespace

void AddConsensus(CLI::App& app, std::istream& in, Action& action) {
  CLI::App* sub = app.add_subcommand("consensus", "Show which consensus and exception neurons fire at each token");
  sub->footer(kConsensusExamples);
  AddAnalysis<v1::TraceConsensusRequest, v1::ConsensusStart>(sub, in, action, "The layer whose tokens are listed",
                                                             &client::Client::TraceConsensus, Show);
}

}  // namespace gatehouse::cli
