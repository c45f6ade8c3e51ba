#include <CLI/App.hpp>
#include <algorithm>
#include <memory>

#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/session.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

constexpr char kModelsExamples[] = R"(Examples:
  gatehouse models
  gatehouse models novella-gpt2-7m
  gatehouse models --json | jq '.models[0].layers[] | {layer, linear_cost, consensus}'
  gatehouse models select-calibration novella-gpt2-7m careful)";

using Model = v1::DescribeModelResponse;

// One block a layer: how much linearizing it costs, from nothing to twice what a
// gateable layer may cost.
std::string CostStrip(const Terminal& terminal, const v1::CalibrationDescription& calibration) {
  std::string strip;
  for (const auto& layer : calibration.layers()) {
    HeatCell cell = HeightCell(std::max(0.0, layer.linear_cost()) / (2 * calibration.gateable_cost_limit()));
    cell.style = layer.gateable() ? kGood : kBad;
    strip += terminal.Paint(cell.style, cell.glyph);
  }
  return strip;
}

void PrintOverview(const Terminal& terminal, const std::vector<Model>& models) {
  Table table({{"name"},
               {"architecture"},
               {"parameters", true},
               {"layers", true},
               {"context", true},
               {"dtype"},
               {"gateable", true},
               {"calibration"}});
  for (const Model& model : models) {
    const auto& layers = model.calibration().layers();
    const auto gateable =
        std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.gateable(); });
    table.Add(
        {{OneLine(model.name()), kBold},
         {OneLine(model.architecture()), kPlain},
         {HumanCount(model.parameters()), kPlain},
         {std::to_string(model.layers()), kPlain},
         {std::to_string(model.context_tokens()), kPlain},
         {OneLine(model.dtype()), kPlain},
         {model.has_calibration() ? std::to_string(gateable) + "/" + std::to_string(model.layers()) : "–", kPlain},
         {model.has_calibration() ? OneLine(model.calibration().name()) : "not calibrated",
          model.has_calibration() ? kPlain : kDim}});
  }
  table.Print(terminal);
  const bool calibrated = std::any_of(models.begin(), models.end(), [](const Model& m) { return m.has_calibration(); });
  if (!calibrated) return;
  terminal.out << "\n" << terminal.Paint(kBold, "What linearizing each layer costs") << "\n";
  for (const Model& model : models) {
    if (!model.has_calibration()) continue;
    terminal.out << CostStrip(terminal, model.calibration()) << "  " << OneLine(model.name()) << "\n";
  }
  terminal.out << terminal.Paint(kDim, "`gatehouse models NAME` shows the figures.") << "\n";
}

std::string NeuronLine(const google::protobuf::RepeatedPtrField<v1::NeuronFinding>& findings) {
  std::string line;
  for (const auto& finding : findings) line += (line.empty() ? "" : ", ") + std::to_string(finding.neuron());
  return line;
}

void PrintNeurons(const Terminal& terminal, const v1::CalibrationDescription& calibration) {
  for (const auto& layer : calibration.layers()) {
    std::vector<std::string> parts;
    if (layer.consensus_size() > 0) parts.push_back("consensus " + NeuronLine(layer.consensus()));
    if (layer.exception_size() > 0) parts.push_back("exception " + NeuronLine(layer.exception()));
    if (layer.gateway_size() > 0) parts.push_back("gateway " + NeuronLine(layer.gateway()));
    if (!parts.empty()) {
      terminal.out << "  " << terminal.Paint(kDim, "layer " + std::to_string(layer.layer())) << "  " << Joined(parts)
                   << "\n";
    }
  }
}

void PrintDetails(const Terminal& terminal, const Model& model) {
  terminal.out << terminal.Paint(kBold, OneLine(model.name())) << "\n";
  terminal.out << "  "
               << Joined({OneLine(model.architecture()), HumanCount(model.parameters()) + " parameters",
                          Count(model.layers(), "layer"), "width " + std::to_string(model.d_model()),
                          "MLP " + std::to_string(model.d_mlp()), Count(model.heads(), "head"),
                          "vocabulary " + std::to_string(model.vocab_size()),
                          "context " + std::to_string(model.context_tokens())})
               << "\n  "
               << Joined({OneLine(model.dtype()) + " on " + OneLine(model.device()),
                          "kernels " + OneLine(model.kernels()), HumanBytes(model.weight_bytes())})
               << "\n  " << terminal.Paint(kDim, OneLine(model.fingerprint())) << "\n";
  if (!model.has_calibration()) {
    terminal.out << "  not calibrated: gatehouse calibrate --model " << OneLine(model.name()) << " --corpus FILE\n";
    return;
  }
  const auto& calibration = model.calibration();
  terminal.out << "\n  calibration " << terminal.Paint(kBold, OneLine(calibration.name())) << " · "
               << OneLine(calibration.created()) << "\n  "
               << Joined({"corpus " + OneLine(calibration.corpus()),
                          std::to_string(calibration.fit_tokens()) + " fit, " +
                              std::to_string(calibration.gate_tokens()) + " gate, " +
                              std::to_string(calibration.select_tokens()) + " select, " +
                              std::to_string(calibration.report_tokens()) + " report tokens",
                          "windows of " + std::to_string(calibration.window_tokens()),
                          "first " + Count(calibration.sink_positions(), "position") + " in full"})
               << "\n\n";
  PrintLayerTable(terminal, {calibration.layers().begin(), calibration.layers().end()}, 2);
  terminal.out << "\n";
  PrintOperatingPoints(terminal, calibration);
  PrintNeurons(terminal, calibration);
  for (const auto& other : model.calibrations()) {
    if (!other.active()) {
      terminal.out << "  "
                   << terminal.Paint(kDim, "also calibrated: " + OneLine(other.name()) + " · " + other.created())
                   << "\n";
    }
  }
}

absl::StatusOr<int> ShowModels(Session& session, std::vector<std::string> names) {
  const bool details = !names.empty();
  Json json = Json::object();
  if (names.empty()) {
    const auto list = session.client.ListModels(session.call);
    if (!list.ok()) return list.status();
    json["replica"] = list->replica();
    for (const auto& model : list->models()) names.push_back(model.name());
  }
  std::vector<Model> models;
  for (const std::string& name : names) {
    auto model = session.client.DescribeModel(name, session.call);
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
  }
  if (session.json) {
    json["models"] = Json::array();
    for (const Model& model : models) json["models"].push_back(ToJson(model));
    session.Print(json);
  } else if (details) {
    for (size_t i = 0; i < models.size(); ++i) {
      if (i > 0) session.terminal.out << "\n";
      PrintDetails(session.terminal, models[i]);
    }
  } else {
    PrintOverview(session.terminal, models);
  }
  return kExitOk;
}

absl::StatusOr<int> SelectCalibration(Session& session, const std::string& model, const std::string& calibration) {
  const auto selected = session.client.SelectCalibration(model, calibration, session.call);
  if (!selected.ok()) return selected.status();
  if (session.json) {
    session.Print({{"model", model}, {"calibration", ToJson(*selected)}});
  } else {
    session.terminal.out << OneLine(model) << " now uses calibration " << OneLine(selected->name()) << "\n";
  }
  return kExitOk;
}

}  // namespace

void AddModels(CLI::App& app, Action& action) {
  struct Flags {
    std::vector<std::string> names;
    std::string model, calibration;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("models", "List models, describe them, choose their calibration");
  sub->footer(kModelsExamples);
  sub->require_subcommand(0, 1);
  sub->add_option("NAME", flags->names, "Describe these; without, list all");
  sub->parse_complete_callback(
      [flags, &action] { action = [flags](Session& session) { return ShowModels(session, flags->names); }; });
  CLI::App* select = sub->add_subcommand("select-calibration", "Make a calibration the model's active one");
  select->fallthrough();
  select->add_option("MODEL", flags->model, "The model's name")->required();
  select->add_option("CALIBRATION", flags->calibration, "The calibration's name")->required();
  select->final_callback([flags, &action] {
    action = [flags](Session& session) { return SelectCalibration(session, flags->model, flags->calibration); };
  });
}

}  // namespace gatehouse::cli
