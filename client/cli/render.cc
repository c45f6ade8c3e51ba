#include "client/cli/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "client/cli/heat.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

std::string LayerLabel(size_t layer) { return std::string("L").append(std::to_string(layer)); }

int FirstPosition(const std::vector<v1::TokenInsight>& tokens) {
  return tokens.empty() ? 0 : static_cast<int>(tokens.front().position());
}

void PrintRoutingMap(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens) {
  std::vector<HeatRow> rows;
  for (int layer = 0; layer < tokens.front().paths_size(); ++layer) {
    HeatRow& row = rows.emplace_back(HeatRow{LayerLabel(static_cast<size_t>(layer)), {}});
    for (const auto& token : tokens) row.cells.push_back(PathCell(token.paths(layer)));
  }
  PrintHeatMap(terminal, rows, FirstPosition(tokens));
}

// Findings beside what the same rules name where there is nothing: "7 (0.3, 2)".
std::string FoundCell(int found, double shuffled, double random) {
  return std::to_string(found) + " (" + Fixed(shuffled, 1) + ", " + Fixed(random, 0) + ")";
}

}  // namespace

std::string Count(uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string Fixed(double value, int digits) {
  if (!std::isfinite(value)) return "–";
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string Percent(double share, int digits) { return std::isfinite(share) ? Fixed(share * 100, digits) + "%" : "–"; }

std::string HumanCount(uint64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 1e9) return Fixed(value / 1e9, 1) + "B";
  if (value >= 1e6) return Fixed(value / 1e6, 1) + "M";
  if (value >= 1e3) return Fixed(value / 1e3, 1) + "k";
  return std::to_string(count);
}

std::string HumanBytes(uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (value >= 1 << 30) return Fixed(value / (1 << 30), 1) + " GiB";
  if (value >= 1 << 20) return Fixed(value / (1 << 20), 1) + " MiB";
  if (value >= 1 << 10) return Fixed(value / (1 << 10), 1) + " KiB";
  return std::to_string(bytes) + " B";
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string line;
  for (const std::string& part : parts) line += (line.empty() ? "" : " · ") + part;
  return line;
}

v1::NonlinearityPercentiles PercentilesOf(const v1::LayerCalibration& layer) {
  v1::NonlinearityPercentiles percentiles;
  percentiles.set_layer(layer.layer());
  percentiles.set_p25(layer.p25());
  percentiles.set_p50(layer.p50());
  percentiles.set_p70(layer.p70());
  percentiles.set_p95(layer.p95());
  return percentiles;
}

v1::CalibrationDescription FetchCalibration(Session& session, const std::string& model,
                                            const std::string& calibration) {
  auto description = session.client.DescribeModel(model, session.call);
  if (!description.ok() || description->calibration().name() != calibration) return {};
  return std::move(*description->mutable_calibration());
}

std::vector<v1::LayerCalibration> FetchLayers(Session& session, const std::string& model,
                                              const std::string& calibration) {
  const v1::CalibrationDescription fetched = FetchCalibration(session, model, calibration);
  return {fetched.layers().begin(), fetched.layers().end()};
}

void PrintNonlinearityMap(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens,
                          const std::vector<v1::NonlinearityPercentiles>& layers) {
  std::vector<HeatRow> rows;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    HeatRow& row = rows.emplace_back(HeatRow{LayerLabel(layer), {}});
    for (const auto& token : tokens) {
      const bool known = static_cast<int>(layer) < token.nonlinearity_size();
      const double score = known ? token.nonlinearity(static_cast<int>(layer)) : std::nan("");
      row.cells.push_back(PercentileCell(PercentileOf(layers[layer], score)));
    }
  }
  PrintHeatMap(terminal, rows, FirstPosition(tokens));
  terminal.out << PercentileLegend(terminal) << "\n";
}

void PrintConsensusMap(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens,
                       const std::vector<int>& sizes) {
  std::vector<HeatRow> rows;
  for (size_t layer = 0; layer < sizes.size(); ++layer) {
    if (sizes[layer] == 0) continue;
    HeatRow& row = rows.emplace_back(HeatRow{LayerLabel(layer), {}});
    for (const auto& token : tokens) {
      const auto found = std::find_if(token.consensus().begin(), token.consensus().end(),
                                      [&](const v1::LayerConsensus& entry) { return entry.layer() == layer; });
      const bool known = found != token.consensus().end() && found->has_level();
      row.cells.push_back(LevelCell(known ? static_cast<int>(found->level()) : -1, sizes[layer],
                                    known && found->exceptions_fired_size() > 0));
    }
  }
  if (rows.empty()) {
    terminal.out << terminal.Paint(kDim, "The calibration found no consensus neurons in any layer.") << "\n";
    return;
  }
  PrintHeatMap(terminal, rows, FirstPosition(tokens));
  terminal.out << LevelLegend(terminal) << "\n";
}

void PrintRecords(const Terminal& terminal, const std::vector<v1::TokenInsight>& tokens,
                  const std::vector<v1::LayerCalibration>& layers) {
  if (tokens.empty()) return;
  const v1::TokenInsight& first = tokens.front();
  const auto title = [&](const char* text) { terminal.out << "\n" << terminal.Paint(kBold, text) << "\n"; };
  if (first.paths_size() > 0) {
    title("Routing, layers × tokens");
    PrintRoutingMap(terminal, tokens);
    terminal.out << PathLegend(terminal) << "\n";
  }
  if (first.nonlinearity_size() > 0 && !layers.empty()) {
    title("Nonlinearity, layers × tokens");
    std::vector<v1::NonlinearityPercentiles> percentiles;
    for (const auto& layer : layers) percentiles.push_back(PercentilesOf(layer));
    PrintNonlinearityMap(terminal, tokens, percentiles);
  }
  if (first.consensus_size() > 0 && !layers.empty()) {
    title("Consensus, layers × tokens");
    std::vector<int> sizes;
    for (const auto& layer : layers) sizes.push_back(layer.consensus_size());
    PrintConsensusMap(terminal, tokens, sizes);
  }
}

std::vector<std::string> RoutingParts(const v1::RoutingSummary& routing) {
  std::vector<std::string> parts = {Percent(routing.linear_fraction(), 1) + " linear"};
  if (routing.ladder_decisions() > 0) {
    const double share = static_cast<double>(routing.ladder_decisions()) / static_cast<double>(routing.decisions());
    parts.push_back(Percent(share, 1) + " ladder");
  }
  if (routing.skip_decisions() > 0) {
    const double share = static_cast<double>(routing.skip_decisions()) / static_cast<double>(routing.decisions());
    parts.push_back(Percent(share, 1) + " skipped");
  }
  if (routing.mlp_work_saved() != 0) parts.push_back(Percent(routing.mlp_work_saved(), 1) + " of the MLP work saved");
  return parts;
}

void PrintNotes(const Terminal& terminal, const v1::RoutingSummary& routing) {
  for (const std::string& note : routing.notes()) {
    terminal.err << terminal.PaintError({.foreground = 179}, "note: " + OneLine(note)) << "\n";
  }
}

void PrintLayerTable(const Terminal& terminal, const std::vector<v1::LayerCalibration>& layers, int indent) {
  std::vector<Table::Column> columns = {{"layer", true},     {"linear cost", true}, {"R²", true},
                                        {"gateable"},        {"gate linear", true}, {"gate cost", true},
                                        {"consensus", true}, {"exception", true},   {"gateway", true}};
  const bool ladders =
      std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.ladder_neurons() > 0; });
  if (ladders) columns.push_back({"ladder", true});
  Table table(columns);
  for (const auto& layer : layers) {
    const std::string cost = (layer.linear_cost() >= 0 ? "+" : "") + Percent(layer.linear_cost(), 2);
    const std::string gate_cost = (layer.gate_cost() >= 0 ? "+" : "") + Percent(layer.gate_cost(), 2);
    std::vector<Table::Cell> cells = {
        {std::to_string(layer.layer()), kPlain},
        {cost, layer.gateable() ? kGood : kPlain},
        {Fixed(layer.surrogate_r2(), 3), kPlain},
        {layer.gateable() ? "yes" : "no", layer.gateable() ? kGood : kDim},
        {Percent(layer.gate_linear_fraction(), 1), kPlain},
        {gate_cost, kPlain},
        {FoundCell(layer.consensus_size(), layer.consensus_null(), layer.consensus_random()), kPlain},
        {FoundCell(layer.exception_size(), layer.exception_null(), layer.exception_random()), kPlain},
        {FoundCell(layer.gateway_size(), layer.gateway_null(), layer.gateway_random()), kPlain}};
    if (ladders) cells.push_back({layer.ladder_neurons() > 0 ? std::to_string(layer.ladder_neurons()) : "–", kPlain});
    table.Add(std::move(cells));
  }
  table.Print(terminal, indent);
  terminal.out << terminal.Paint(kDim, std::string(static_cast<size_t>(indent), ' ') +
                                           "neurons named (under shuffled labels, with the MLP drawn anew): what is no "
                                           "more than those is chance")
               << "\n";
}

void PrintOperatingPoints(const Terminal& terminal, const v1::CalibrationDescription& calibration) {
  if (calibration.operating_points_size() == 0) return;
  std::vector<std::string> ingredients(calibration.ingredients().begin(), calibration.ingredients().end());
  for (std::string& ingredient : ingredients) ingredient = OneLine(ingredient);
  terminal.out << "  " << terminal.Paint(kBold, "operating points");
  if (!ingredients.empty()) terminal.out << " · " << Joined(ingredients);
  terminal.out << "\n";
  Table table(
      {{"name"}, {"perplexity", true}, {"95% interval"}, {"MLP work saved", true}, {"linear", true}, {"ladder", true}});
  const auto signed_percent = [](double share) { return (share >= 0 ? "+" : "") + Percent(share, 2); };
  for (const auto& point : calibration.operating_points()) {
    table.Add({{OneLine(point.name()), kBold},
               {signed_percent(point.cost()), point.cost() <= point.budget() ? kGood : kBad},
               {signed_percent(point.cost_low()) + " to " + signed_percent(point.cost_high()), kDim},
               {Percent(point.work_saved(), 1), kPlain},
               {Percent(point.linear_fraction(), 1), kPlain},
               {Percent(point.ladder_fraction(), 1), kPlain}});
  }
  table.Print(terminal, 2);
  terminal.out << terminal.Paint(kDim, "  use one with --operating-point NAME") << "\n\n";
}

}  // namespace gatehouse::cli
