// Measures what gating saves in decoding, beside the ideal, in one run.  Prints one JSON
// object for each policy and batch:
//
//   gatehouse-gating-bench --model DIR --dtype bfloat16 --fractions 0.25,0.5,0.75,1 --batches 1,8,32
//   gatehouse-gating-bench --model DIR --calibration FILE --text FILE
//
// With --fractions the calibration is random and thresholds are set so that the fraction
// comes out; with --calibration every operating point of it is run on the text.
//
// `speedup` is over full, the two run by turns: the median of the rounds.  `ideal_speedup`: at batch 1 from the weights
// that a step reads; at other batches from the time of a full step, less its MLPs at their
// measured time, plus the measured times of the partitions' products at the row counts
// that occurred.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/engine.h"
#include "server/engine/mlp_work.h"
#include "server/engine/model/weights.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/bench/engine_runs.h"
#include "tests/bench/partition_times.h"
#include "tests/support/arguments.h"

namespace gatehouse {
namespace {

std::vector<double> Numbers(const std::string& text) {
  std::vector<double> numbers;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) numbers.push_back(std::stod(part));
  return numbers;
}

struct NamedPolicy {
  std::string name;
  RoutingPolicy policy;
};

absl::StatusOr<std::vector<NamedPolicy>> Policies(Engine& engine, EngineRuns& runs,
                                                  const testing::Arguments& arguments) {
  std::vector<NamedPolicy> policies;
  const auto add = [&](const std::string& name, const GatingRequest& request,
                       std::shared_ptr<const Calibration> calibration) -> absl::Status {
    GH_ASSIGN_OR_RETURN(RoutingPolicy policy, RoutingPolicy::Create(request, engine.info(), std::move(calibration)));
    policies.push_back({name, std::move(policy)});
    return absl::OkStatus();
  };
  GatingRequest request;
  request.mode = GatingMode::kGated;
  if (!arguments["calibration"].empty()) {
    GH_ASSIGN_OR_RETURN(const std::shared_ptr<const Calibration> calibration,
                        engine.LoadCalibration(arguments["calibration"]));
    for (const OperatingPoint& point : calibration->info().operating_points) {
      request.operating_point = point.name;
      GH_RETURN_IF_ERROR(add(point.name, request, calibration));
    }
    return policies;
  }
  GH_ASSIGN_OR_RETURN(const std::shared_ptr<const Calibration> calibration, RandomCalibration(engine, 0.25));
  for (const double fraction : Numbers(arguments["fractions"])) {
    GatingRequest forced = request;
    if (fraction >= 1) {
      forced.mode = GatingMode::kLinear;
    } else {
      forced.layer_thresholds = runs.ThresholdsFor(fraction, calibration);
    }
    GH_RETURN_IF_ERROR(add(StrCat("fraction ", fraction), forced, calibration));
  }
  return policies;
}

// Weights that a step of one row reads, of which the MLPs' share `saved` was not read; over
// those of a full step.
double BytesSpeedup(const ModelWeights& model, const ModelInfo& info, double saved) {
  double other = static_cast<double>(model.output.weight.numel());
  for (const LayerWeights& layer : model.layers) {
    other += static_cast<double>(layer.qkv.weight.numel() + layer.attention_out.weight.numel());
  }
  const double mlps = static_cast<double>(FullMlpWork(info)) * info.layers;
  return (other + mlps) / (other + mlps * (1 - saved));
}

// ladder_neurons: of every layer that has a ladder.
double PartitionSpeedup(PartitionTimes& times, int batch, double full_tokens_per_second,
                        const EngineRuns::Figure& figure, int layers, int ladder_neurons) {
  const double full_step = batch / full_tokens_per_second;
  double partitions = 0, counted = 0;
  for (const auto& [rows, count] : figure.partitions) {
    partitions += static_cast<double>(count) *
                  (times.Full(rows[0]) + times.Linear(rows[1]) + times.Ladder(rows[2], ladder_neurons));
    counted += static_cast<double>(count);
  }
  const double ideal_step = full_step + layers * (partitions / counted - times.Full(batch));
  return full_step / ideal_step;
}

int LadderNeurons(const Calibration& calibration) {
  int neurons = 0;
  for (const LayerCalibration& layer : calibration.info().layers) neurons = std::max(neurons, layer.ladder_neurons);
  return neurons;
}

double Round(double value) { return std::round(value * 1000) / 1000; }

absl::Status Main(const testing::Arguments& arguments) {
  EngineOptions options;
  options.device = "cpu";
  options.dtype = arguments["dtype"];
  options.kernels = arguments["kernels"];
  const at::ScalarType dtype = options.dtype == "float32" ? at::kFloat : at::kBFloat16;
  GH_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(arguments["model"], options));
  GH_ASSIGN_OR_RETURN(const ModelWeights model, LoadModelWeights(arguments["model"], dtype, at::kCPU));
  GH_ASSIGN_OR_RETURN(const std::unique_ptr<Kernels> kernels, MakeKernels(options.kernels, at::kCPU, dtype));
  PartitionTimes times(model, *kernels);
  EngineRuns::Options run_options{.new_tokens = arguments.Int("new"),
                                  .prompt = arguments.Int("prompt"),
                                  .tokens = 0,
                                  .rounds = arguments.Int("rounds"),
                                  .text = {}};
  if (!arguments["text"].empty()) {
    GH_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                        Tokenizer::Load(StrCat(arguments["model"], "/tokenizer.json")));
    GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(arguments["text"]));
    GH_ASSIGN_OR_RETURN(run_options.text, tokenizer->Encode(text));
  }
  EngineRuns runs(*engine, std::move(run_options));
  GH_ASSIGN_OR_RETURN(const std::vector<NamedPolicy> policies, Policies(*engine, runs, arguments));
  const RoutingPolicy full_policy = RoutingPolicy::Full(engine->info());
  for (const double size : Numbers(arguments["batches"])) {
    const int batch = static_cast<int>(size);
    for (const NamedPolicy& each : policies) {
      const EngineRuns::Comparison compared = runs.CompareDecode(batch, full_policy, each.policy);
      const EngineRuns::Figure& figure = compared.policy;
      const double full = compared.base.tokens_per_second;
      nlohmann::json line = {{"policy", each.name},
                             {"batch", batch},
                             {"dtype", options.dtype},
                             {"full_tokens_per_s", Round(full)},
                             {"tokens_per_s", Round(figure.tokens_per_second)},
                             {"linear_fraction", Round(figure.linear_fraction)},
                             {"ladder_fraction", Round(figure.ladder_fraction)},
                             {"mlp_work_saved", Round(figure.mlp_work_saved)},
                             {"speedup", Round(compared.speedup)}};
      if (batch == 1) {
        line["ideal_speedup"] = Round(BytesSpeedup(model, engine->info(), figure.mlp_work_saved));
      } else {
        line["ideal_speedup"] = Round(PartitionSpeedup(times, batch, full, figure, engine->info().layers,
                                                       LadderNeurons(*each.policy.calibration())));
      }
      std::cout << line << std::endl;
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const c10::InferenceMode guard;
  const gatehouse::testing::Arguments arguments(argc, argv,
                                                {{"model", ""},
                                                 {"dtype", "bfloat16"},
                                                 {"kernels", "auto"},
                                                 {"fractions", "0.25,0.5,0.75,1"},
                                                 {"calibration", ""},
                                                 {"text", ""},
                                                 {"batches", "1,8,32"},
                                                 {"new", "48"},
                                                 {"prompt", "32"},
                                                 {"rounds", "7"}});
  const absl::Status status = gatehouse::Main(arguments);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
