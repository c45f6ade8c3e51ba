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
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/engine.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/mlp_work.h"
#include "tests/support/arguments.h"

namespace gatehouse {
namespace {

constexpr int kChunk = 256;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// Random surrogates, gates and ladders for the engine's model.
absl::StatusOr<std::shared_ptr<const Calibration>> RandomCalibration(Engine& engine, double ladder_share) {
  const ModelInfo& info = engine.info();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  CalibrationData data;
  data.info.name = "random";
  data.info.model_fingerprint = info.fingerprint;
  const double scale = 1 / std::sqrt(static_cast<double>(info.d_model));
  const int64_t ladder_neurons = std::clamp<int64_t>(std::llround(ladder_share * info.d_mlp), 1, info.d_mlp);
  for (int layer = 0; layer < info.layers; ++layer) {
    data.info.layers.emplace_back().gateable = true;
    data.layers.push_back({.surrogate_weight = at::randn({info.d_model, info.d_model}, generator).mul_(0.1 * scale),
                           .surrogate_bias = at::randn({info.d_model}, generator).mul_(0.01),
                           .gate_weight = at::randn({info.d_model}, generator).mul_(scale),
                           .gate_bias = at::zeros({1}),
                           .ladder_weight = at::randn({info.d_model, info.d_model}, generator).mul_(0.1 * scale),
                           .ladder_bias = at::zeros({info.d_model}),
                           .ladder_neurons = at::arange(ladder_neurons, at::kLong)});
  }
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("gatehouse-bench-", getpid(), ".safetensors")).string();
  GH_RETURN_IF_ERROR(WriteCalibrationFile(path, data));
  absl::StatusOr<std::shared_ptr<const Calibration>> calibration = engine.LoadCalibration(path);
  std::filesystem::remove(path);
  return calibration;
}

// Runs sequences of pseudo-random tokens through an engine.
class Bench {
 public:
  Bench(Engine& engine, const testing::Arguments& arguments)
      : engine_(engine),
        new_tokens_(arguments.Int("new")),
        prompt_(arguments.Int("prompt")),
        tokens_(arguments.Int("tokens")),
        rounds_(arguments.Int("rounds")),
        sampling_(SamplingState::Create(Greedy(), engine.info().vocab_size).value()) {}

  struct Figure {
    double tokens_per_second = 0;
    double linear_fraction = 0, ladder_fraction = 0;
    double mlp_work_saved = 0;
  };

  Figure Decode(int batch, const RoutingPolicy& policy) {
    return Best([&] {
      std::vector<SequenceId> sequences;
      for (int i = 0; i < batch; ++i) {
        sequences.push_back(engine_.Open(prompt_ + new_tokens_).value());
        Feed(sequences.back(), Text(prompt_, i), policy, /*score=*/false);
      }
      traffic_.assign(engine_.info().layers, {});
      const double start = Seconds();
      for (int step = 0; step < new_tokens_; ++step) {
        const std::vector<int32_t> tokens = Text(batch, step);
        std::vector<Row> rows(batch);
        for (int i = 0; i < batch; ++i) {
          rows[i].sequence = sequences[i];
          rows[i].tokens = std::span(tokens).subspan(i, 1);
          rows[i].policy = &policy;
          rows[i].sampling = &sampling_;
        }
        Step(rows);
      }
      const double seconds = Seconds() - start;
      for (const SequenceId sequence : sequences) engine_.Close(sequence);
      return batch * new_tokens_ / seconds;
    });
  }

  Figure Text(const RoutingPolicy& policy, bool score) {
    return Best([&] {
      const SequenceId sequence = engine_.Open(tokens_).value();
      traffic_.assign(engine_.info().layers, {});
      const double start = Seconds();
      Feed(sequence, Text(tokens_, 0), policy, score);
      const double seconds = Seconds() - start;
      engine_.Close(sequence);
      return tokens_ / seconds;
    });
  }

  // Thresholds of every layer that send `fraction` of the tokens linear.  Layer after
  // layer, since each sees what the ones before it made of the text.
  std::map<int, float> ThresholdsFor(double fraction, const std::shared_ptr<const Calibration>& calibration) {
    GatingRequest request;
    request.mode = GatingMode::kGated;
    for (int layer = 0; layer < engine_.info().layers; ++layer) request.layer_thresholds[layer] = 0.5f;
    for (int layer = 0; layer < engine_.info().layers; ++layer) {
      const RoutingPolicy policy = RoutingPolicy::Create(request, engine_.info(), calibration).value();
      std::vector<float> p;
      const std::vector<int32_t> tokens = Text(std::min(64, engine_.info().context), 1);
      const SequenceId sequence = engine_.Open(static_cast<int>(tokens.size())).value();
      Row row;
      row.sequence = sequence;
      row.tokens = tokens;
      row.policy = &policy;
      row.records.routing = true;
      const RowResult result = engine_.Step({&row, 1}).value().front();
      engine_.Close(sequence);
      for (int token = 0; token < result.records.tokens; ++token) {
        const float margin = result.records.gate_margin[static_cast<size_t>(token) * engine_.info().layers + layer];
        if (!std::isnan(margin)) p.push_back(margin + 0.5f);
      }
      const auto cut = p.begin() + static_cast<int64_t>((1 - fraction) * static_cast<double>(p.size() - 1));
      std::nth_element(p.begin(), cut, p.end());
      request.layer_thresholds[layer] = *cut;
    }
    return request.layer_thresholds;
  }

 private:
  static SamplingParams Greedy() {
    SamplingParams params;
    params.temperature = 0;
    return params;
  }

  std::vector<int32_t> Text(int count, int seed) const {
    std::vector<int32_t> ids(count);
    for (int i = 0; i < count; ++i)
      ids[i] = static_cast<int32_t>((i * 7919LL + seed * 104729LL + 17) % engine_.info().vocab_size);
    return ids;
  }

  void Feed(SequenceId sequence, const std::vector<int32_t>& ids, const RoutingPolicy& policy, bool score) {
    for (size_t first = 0; first < ids.size(); first += kChunk) {
      Row row;
      row.sequence = sequence;
      row.tokens = std::span(ids).subspan(first, std::min<size_t>(kChunk, ids.size() - first));
      row.policy = &policy;
      if (score) {
        row.targets = row.tokens;
      } else if (first + kChunk >= ids.size()) {
        row.sampling = &sampling_;
      }
      Step({&row, 1});
    }
  }

  void Step(std::span<const Row> rows) {
    const std::vector<RowResult> results = engine_.Step(rows).value();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!results[i].status.ok()) {
        std::cerr << results[i].status << "\n";
        std::exit(1);
      }
      const CalibrationInfo& calibrated = rows[i].policy->calibration()->info();
      for (size_t layer = 0; layer < traffic_.size(); ++layer) {
        LayerTraffic& traffic = traffic_[layer];
        traffic.ladder_neurons = calibrated.layers[layer].ladder_neurons;
        traffic.linear += results[i].linear_tokens[layer];
        traffic.ladder += results[i].ladder_tokens[layer];
        traffic.gated += results[i].gated_tokens[layer];
        traffic.full += static_cast<int64_t>(rows[i].tokens.size()) - results[i].linear_tokens[layer] -
                        results[i].ladder_tokens[layer];
      }
    }
  }

  // The best of some rounds, after one to warm up.
  template <typename Run>
  Figure Best(const Run& run) {
    run();
    Figure best;
    for (int round = 0; round < rounds_; ++round) {
      best.tokens_per_second = std::max(best.tokens_per_second, run());
    }
    double linear = 0, ladder = 0, all = 0;
    for (const LayerTraffic& layer : traffic_) {
      linear += static_cast<double>(layer.linear);
      ladder += static_cast<double>(layer.ladder);
      all += static_cast<double>(layer.full + layer.linear + layer.ladder);
    }
    best.linear_fraction = linear / all;
    best.ladder_fraction = ladder / all;
    best.mlp_work_saved = MlpWorkSaved(engine_.info(), traffic_);
    return best;
  }

  Engine& engine_;
  const int new_tokens_, prompt_, tokens_, rounds_;
  SamplingState sampling_;
  std::vector<LayerTraffic> traffic_;  // [layers], of the current round
};

void Print(const Engine& engine, const std::string& policy, const std::string& what, int batch, Bench::Figure figure) {
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
  Bench bench(*engine, arguments);
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
