// Measures the engine: tokens a second of decoding, prefill and scoring, with every MLP in
// full, a given fraction of the tokens linear, all linear, and all through ladders that keep
// a given share of the neurons.  Prints one JSON object a figure:
//
//   gatehouse-engine-bench --model DIR --dtype bfloat16 --batches 1,8 --fraction 0.5
//   gatehouse-engine-bench --model DIR --policies full,linear,ladder --ladder-share 0.25
//
// The calibration is random: speed does not depend on the values, and thresholds are set so
// that the fraction comes out.  `ideal_mlp` is the multiplications of the MLPs over those in
// full.
//   decode   steps of one token a row after a prompt, which is not counted
//   prefill  one text in chunks of 256, output projection of its last position only
//   score    likewise, output projection of every position
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "server/base/status_macros.h"
#include "server/engine/engine.h"
#include "tests/bench/engine_runs.h"
#include "tests/support/arguments.h"

namespace gatehouse {
namespace {

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

void Print(const Engine& engine, const std::string& policy, const std::string& what, int batch,
           const EngineRuns::Figure& figure) {
  const nlohmann::json line = {{"policy", policy},
                               {"what", what},
                               {"batch", batch},
                               {"tokens_per_s", std::round(figure.tokens_per_second * 10) / 10},
                               {"linear_fraction", std::round(figure.linear_fraction * 1000) / 1000},
                               {"ladder_fraction", std::round(figure.ladder_fraction * 1000) / 1000},
                               {"ideal_mlp", std::round((1 - figure.mlp_work_saved) * 1000) / 1000},
                               {"dtype", engine.info().dtype},
                               {"device", engine.info().device},
                               {"kernels", engine.info().kernels}};
  std::cout << line << std::endl;
}

absl::Status Main(const testing::Arguments& arguments) {
  EngineOptions options;
  options.device = arguments["device"];
  options.dtype = arguments["dtype"];
  options.kernels = arguments["kernels"];
  GH_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(arguments["model"], options));
  GH_ASSIGN_OR_RETURN(const std::shared_ptr<const Calibration> calibration,
                      RandomCalibration(*engine, std::stod(arguments["ladder-share"])));
  EngineRuns bench(*engine, {.new_tokens = arguments.Int("new"),
                             .prompt = arguments.Int("prompt"),
                             .tokens = arguments.Int("tokens"),
                             .rounds = arguments.Int("rounds"),
                             .text = {}});
  for (const std::string& name : Split(arguments["policies"])) {
    GatingRequest request;
    if (name == "linear") request.mode = GatingMode::kLinear;
    if (name == "ladder") request.mode = GatingMode::kLadder;
    if (name == "gated") {
      request.mode = GatingMode::kGated;
      request.layer_thresholds = bench.ThresholdsFor(std::stod(arguments["fraction"]), calibration);
    }
    GH_ASSIGN_OR_RETURN(const RoutingPolicy policy, RoutingPolicy::Create(request, engine->info(), calibration));
    for (const std::string& batch : Split(arguments["batches"])) {
      Print(*engine, name, "decode", std::stoi(batch), bench.Decode(std::stoi(batch), policy));
    }
    if (arguments.Int("tokens") > 0) {
      Print(*engine, name, "prefill", 1, bench.Text(policy, /*score=*/false));
      Print(*engine, name, "score", 1, bench.Text(policy, /*score=*/true));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const gatehouse::testing::Arguments arguments(argc, argv,
                                                {{"model", ""},
                                                 {"device", "cpu"},
                                                 {"dtype", "float32"},
                                                 {"kernels", "auto"},
                                                 {"policies", "full,gated,linear"},
                                                 {"fraction", "0.5"},
                                                 {"ladder-share", "0.25"},
                                                 {"batches", "1,8"},
                                                 {"new", "64"},
                                                 {"prompt", "32"},
                                                 {"tokens", "512"},
                                                 {"rounds", "3"}});
  const absl::Status status = gatehouse::Main(arguments);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
