#include "tests/engine/analysis/calibration_sample.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "server/engine/model/safetensors.h"

namespace gatehouse::testing {

ModelWeights SampleModel() {
  ModelWeights model;
  model.config.layers = kLayers;
  model.config.d_model = kModel;
  model.config.d_mlp = kMlp;
  model.config.context = 32;
  model.fingerprint = "sha256:model";
  model.token_embedding = at::zeros({4, kModel});
  model.layers.resize(kLayers);
  for (LayerWeights& layer : model.layers) layer.mlp_in.weight = at::zeros({kMlp, kModel});
  return model;
}

CalibrationData SampleCalibration() {
  at::manual_seed(1);
  CalibrationData data;
  data.info.name = "name with \"quotes\" and é";
  data.info.model_fingerprint = "sha256:model";
  data.info.created = "2026-01-02T03:04:05Z";
  data.info.corpus = "corpus";
  data.info.corpus_sha256 = "cafe";
  data.info.fit_tokens = 1;
  data.info.gate_tokens = 2;
  data.info.select_tokens = 3;
  data.info.report_tokens = 4;
  data.info.window_tokens = 32;
  data.info.sink_positions = 5;
  data.info.gateable_cost_limit = 0.03;
  data.info.ridge = 0.5;
  data.info.seed = std::numeric_limits<uint64_t>::max();
  data.info.dtype = "float32";
  for (int i = 0; i < kLayers; ++i) {
    CalibrationData::Layer& tensors = data.layers.emplace_back();
    tensors.surrogate_weight = at::randn({kModel, kModel});
    tensors.surrogate_bias = at::randn({kModel});
    tensors.gate_weight = at::randn({kModel});
    tensors.gate_bias = at::randn({1});
    LayerCalibration layer;
    layer.linear_cost = 0.01 * i;
    layer.linear_cost_with_sinks = 0.1;
    layer.surrogate_r2 = -0.25;
    layer.surrogate_r2_with_sinks = 0.5;
    layer.gateable = i == 1;
    layer.gate_linear_fraction = 0.4;
    layer.gate_cost = -0.001;
    layer.p25 = 1;
    layer.p50 = 2;
    layer.p70 = 3;
    layer.p95 = 4;
    layer.consensus = {{kMlp - 1, 0.9, -0.8}, {0, 0.7, -0.5}};
    layer.exception = {{7, 0.1, 0.6}};
    layer.consensus_null = 0.05;
    layer.gateway_random = 2;
    data.info.layers.push_back(layer);
  }
  return data;
}

CalibrationData SampleWithLadders() {
  CalibrationData data = SampleCalibration();
  for (const int layer : {0, 2}) {
    data.layers[layer].ladder_weight = at::randn({kModel, kModel});
    data.layers[layer].ladder_bias = at::randn({kModel});
    data.layers[layer].ladder_neurons = at::tensor({1, 4, kMlp - 1 - layer}, at::kLong);
  }
  data.info.ingredients = {"sequential", "ladders"};
  OperatingPoint point;
  point.name = "1%";
  point.budget = 0.01;
  point.layers = {{0.7f, 0.3f}, {-1, 1}, {1, -1}};
  point.cost = 0.009;
  point.cost_low = -0.002;
  point.cost_high = 0.02;
  point.work_saved = 0.25;
  point.linear_fraction = 0.2;
  point.ladder_fraction = 0.1;
  data.info.operating_points = {point, {.name = "plain", .layers = {{}, {}, {}}}};
  return data;
}

std::string SamplePath(const std::string& name) {
  return ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + "-" + name;
}

std::map<std::string, at::Tensor> TensorsOf(const CalibrationData& data) {
  std::map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < data.layers.size(); ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    tensors[prefix + "surrogate.weight"] = data.layers[i].surrogate_weight;
    tensors[prefix + "surrogate.bias"] = data.layers[i].surrogate_bias;
    tensors[prefix + "gate.weight"] = data.layers[i].gate_weight;
    tensors[prefix + "gate.bias"] = data.layers[i].gate_bias;
    if (!data.layers[i].ladder_neurons.defined()) continue;
    tensors[prefix + "ladder.weight"] = data.layers[i].ladder_weight;
    tensors[prefix + "ladder.bias"] = data.layers[i].ladder_bias;
    tensors[prefix + "ladder.neurons"] = data.layers[i].ladder_neurons;
  }
  return tensors;
}

absl::StatusOr<CalibrationData> WriteAndRead(const std::map<std::string, at::Tensor>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  const std::string path = SamplePath("by-hand.safetensors");
  EXPECT_TRUE(WriteSafetensors(path, tensors, metadata).ok());
  return ReadCalibrationFile(path, SampleModel());
}

}  // namespace gatehouse::testing
