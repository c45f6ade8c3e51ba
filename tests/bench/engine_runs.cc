#include "tests/bench/engine_runs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/gating/loaded_calibration.h"

namespace gatehouse {
namespace {

constexpr int kChunk = 256;

double RunClock() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

}  // namespace

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
                           .ladder_neurons = at::arange(ladder_neurons, at::kLong),
                           .neuron_mean = {}});
  }
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat("gatehouse-bench-", getpid(), ".safetensors")).string();
  GH_RETURN_IF_ERROR(WriteCalibrationFile(path, data));
  absl::StatusOr<std::shared_ptr<const Calibration>> calibration = engine.LoadCalibration(path);
  std::filesystem::remove(path);
  return calibration;
}

EngineRuns::EngineRuns(Engine& engine, Options options)
    : engine_(engine),
      options_(std::move(options)),
      sampling_(SamplingState::Create(Greedy(), engine.info().vocab_size).value()) {}

EngineRuns::Figure EngineRuns::Decode(int batch, const RoutingPolicy& policy) {
  return Best([&] { return DecodeOnce(batch, policy); });
}

EngineRuns::Comparison EngineRuns::CompareDecode(int batch, const RoutingPolicy& base, const RoutingPolicy& policy) {
  DecodeOnce(batch, base);  // both warm up
  DecodeOnce(batch, policy);
  Comparison comparison;
  std::vector<double> base_speeds, policy_speeds, speedups;
  for (int round = 0; round < options_.rounds; ++round) {
    base_speeds.push_back(DecodeOnce(batch, base));
    comparison.base = Counted(Median(base_speeds));
    policy_speeds.push_back(DecodeOnce(batch, policy));
    comparison.policy = Counted(Median(policy_speeds));
    speedups.push_back(policy_speeds.back() / base_speeds.back());
  }
  comparison.speedup = Median(speedups);
  return comparison;
}

double EngineRuns::DecodeOnce(int batch, const RoutingPolicy& policy) {
  std::vector<SequenceId> sequences;
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < batch; ++i) {
    sequences.push_back(engine_.Open(options_.prompt + options_.new_tokens).value());
    texts.push_back(Tokens(i, options_.prompt, options_.new_tokens));
    Feed(sequences.back(), Tokens(i, 0, options_.prompt), policy, /*score=*/false);
  }
  StartCounting();
  const double start = RunClock();
  for (int step = 0; step < options_.new_tokens; ++step) {
    std::vector<Row> rows(batch);
    for (int i = 0; i < batch; ++i) {
      rows[i].sequence = sequences[i];
      rows[i].tokens = std::span(texts[i]).subspan(step, 1);
      rows[i].policy = &policy;
      rows[i].sampling = &sampling_;
    }
    Step(rows);
  }
  const double seconds = RunClock() - start;
  for (const SequenceId sequence : sequences) engine_.Close(sequence);
  return batch * options_.new_tokens / seconds;
}

EngineRuns::Figure EngineRuns::Text(const RoutingPolicy& policy, bool score) {
  return Best([&] {
    const SequenceId sequence = engine_.Open(options_.tokens).value();
    StartCounting();
    const double start = RunClock();
    Feed(sequence, Tokens(0, 0, options_.tokens), policy, score);
    const double seconds = RunClock() - start;
    engine_.Close(sequence);
    return options_.tokens / seconds;
  });
}

std::map<int, float> EngineRuns::ThresholdsFor(double fraction, const std::shared_ptr<const Calibration>& calibration) {
  const int layers = engine_.info().layers;
  GatingRequest request;
  request.mode = GatingMode::kGated;
  for (int layer = 0; layer < layers; ++layer) request.layer_thresholds[layer] = 0.5f;
  for (int layer = 0; layer < layers; ++layer) {
    const RoutingPolicy policy = RoutingPolicy::Create(request, engine_.info(), calibration).value();
    std::vector<float> p;
    const std::vector<int32_t> tokens = Tokens(1, 0, std::min(64, engine_.info().context));
    const SequenceId sequence = engine_.Open(static_cast<int>(tokens.size())).value();
    Row row;
    row.sequence = sequence;
    row.tokens = tokens;
    row.policy = &policy;
    row.records.routing = true;
    const RowResult result = engine_.Step({&row, 1}).value().front();
    engine_.Close(sequence);
    for (int token = 0; token < result.records.tokens; ++token) {
      const float margin = result.records.gate_margin[static_cast<size_t>(token) * layers + layer];
      if (!std::isnan(margin)) p.push_back(margin + 0.5f);
    }
    const auto cut = p.begin() + static_cast<int64_t>((1 - fraction) * static_cast<double>(p.size() - 1));
    std::nth_element(p.begin(), cut, p.end());
    request.layer_thresholds[layer] = *cut;
  }
  return request.layer_thresholds;
}

std::vector<int32_t> EngineRuns::Tokens(int row, int first, int count) const {
  std::vector<int32_t> ids(count);
  for (int i = 0; i < count; ++i) {
    const int64_t at = row * 104'729LL + first + i;
    ids[i] = options_.text.empty() ? static_cast<int32_t>((at * 7919 + 17) % engine_.info().vocab_size)
                                   : options_.text[at % static_cast<int64_t>(options_.text.size())];
  }
  return ids;
}

void EngineRuns::Feed(SequenceId sequence, const std::vector<int32_t>& ids, const RoutingPolicy& policy, bool score) {
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

void EngineRuns::Step(std::span<const Row> rows) {
  const std::vector<RowResult> results = engine_.Step(rows).value();
  for (const RowResult& result : results) {
    if (result.status.ok()) continue;
    std::cerr << result.status << "\n";
    std::exit(1);
  }
  Count(rows, results);
}

void EngineRuns::Count(std::span<const Row> rows, std::span<const RowResult> results) {
  for (size_t layer = 0; layer < traffic_.size(); ++layer) {
    std::array<int, 3> partition = {0, 0, 0};
    for (size_t i = 0; i < rows.size(); ++i) {
      const int linear = static_cast<int>(results[i].linear_tokens[layer]);
      const int ladder = static_cast<int>(results[i].ladder_tokens[layer]);
      partition[0] += static_cast<int>(rows[i].tokens.size()) - linear - ladder;
      partition[1] += linear;
      partition[2] += ladder;
      traffic_[layer].gated += results[i].gated_tokens[layer];
    }
    const auto& calibration = rows.front().policy->calibration();
    if (calibration != nullptr) traffic_[layer].ladder_neurons = calibration->info().layers[layer].ladder_neurons;
    traffic_[layer].full += partition[0];
    traffic_[layer].linear += partition[1];
    traffic_[layer].ladder += partition[2];
    ++partitions_[partition];
  }
}

void EngineRuns::StartCounting() {
  traffic_.assign(engine_.info().layers, {});
  partitions_.clear();
}

EngineRuns::Figure EngineRuns::Best(const std::function<double()>& run) {
  run();
  double best = 0;
  for (int round = 0; round < options_.rounds; ++round) best = std::max(best, run());
  return Counted(best);
}

EngineRuns::Figure EngineRuns::Counted(double tokens_per_second) const {
  Figure figure;
  figure.tokens_per_second = tokens_per_second;
  double linear = 0, ladder = 0, all = 0;
  for (const LayerTraffic& layer : traffic_) {
    linear += static_cast<double>(layer.linear);
    ladder += static_cast<double>(layer.ladder);
    all += static_cast<double>(layer.full + layer.linear + layer.ladder);
  }
  figure.linear_fraction = linear / all;
  figure.ladder_fraction = ladder / all;
  figure.mlp_work_saved = MlpWorkSaved(engine_.info(), traffic_);
  figure.partitions = partitions_;
  return figure;
}

}  // namespace gatehouse
