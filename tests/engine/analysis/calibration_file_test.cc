#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/engine/gating/calibration_description.h"
#include "server/engine/gating/loaded_calibration.h"
#include "tests/engine/analysis/calibration_sample.h"

namespace gatehouse::testing {
namespace {

TEST(CalibrationFile, ComesBackAsItWasWritten) {
  const std::string path = SamplePath("round.safetensors");
  const CalibrationData data = SampleCalibration();
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  const auto read = ReadCalibrationFile(path, SampleModel());
  ASSERT_TRUE(read.ok()) << read.status();
  for (int i = 0; i < kLayers; ++i) {
    EXPECT_TRUE(at::equal(read->layers[i].surrogate_weight, data.layers[i].surrogate_weight));
    EXPECT_TRUE(at::equal(read->layers[i].surrogate_bias, data.layers[i].surrogate_bias));
    EXPECT_TRUE(at::equal(read->layers[i].gate_weight, data.layers[i].gate_weight));
    EXPECT_TRUE(at::equal(read->layers[i].gate_bias, data.layers[i].gate_bias));
  }
  // The metadata holds every field of the description but the fingerprint.
  EXPECT_EQ(CalibrationMetadata(read->info), CalibrationMetadata(data.info));
  EXPECT_EQ(read->info.seed, data.info.seed);
  EXPECT_EQ(read->info.name, data.info.name);
  EXPECT_EQ(read->info.layers[0].consensus[0].neuron, kMlp - 1);
  EXPECT_EQ(read->info.layers[2].surrogate_r2, -0.25);
  EXPECT_FALSE(read->info.layers[0].gateable);
  EXPECT_TRUE(read->info.layers[1].gateable);
}

TEST(CalibrationFile, HasTheFingerprintOfItsBytes) {
  const std::string path = SamplePath("finger.safetensors");
  ASSERT_TRUE(WriteCalibrationFile(path, SampleCalibration()).ok());
  const auto read = ReadCalibrationFile(path, SampleModel());
  const auto info = ReadCalibrationFileInfo(path);
  const auto bytes = ReadFile(path);
  ASSERT_TRUE(read.ok() && info.ok() && bytes.ok());
  EXPECT_EQ(info->fingerprint, "sha256:" + Sha256Hex(*bytes));
  EXPECT_EQ(read->info.fingerprint, info->fingerprint);
  EXPECT_EQ(CalibrationMetadata(*info), CalibrationMetadata(read->info));
}

TEST(CalibrationFile, WrittenByHandMayLeaveOutAllThatDescribesIt) {
  const std::map<std::string, std::string> metadata = {
      {"format", "gatehouse.calibration"}, {"version", "1"}, {"model_fingerprint", "sha256:model"}};
  std::map<std::string, at::Tensor> tensors = TensorsOf(SampleCalibration());
  tensors["layers.1.surrogate.weight"] = tensors["layers.1.surrogate.weight"].to(at::kDouble);
  tensors["layers.2.gate.weight"] = tensors["layers.2.gate.weight"].to(at::kBFloat16);
  const auto read = WriteAndRead(tensors, metadata);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->layers[1].surrogate_weight.scalar_type(), at::kFloat);
  EXPECT_EQ(read->layers[2].gate_weight.scalar_type(), at::kFloat);
  EXPECT_EQ(read->info.sink_positions, 4);
  ASSERT_EQ(read->info.layers.size(), 3u);
  for (const LayerCalibration& layer : read->info.layers) EXPECT_TRUE(layer.gateable);

  // A cost that is given decides, unless gateable says otherwise.
  auto with_costs = metadata;
  with_costs["calibration"] =
      R"({"gateable_cost_limit": 0.02, "layers": [{"linear_cost": 0.01}, {"linear_cost": 0.03},
          {"linear_cost": 0.5, "gateable": true}]})";
  const auto costs = WriteAndRead(tensors, with_costs);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_TRUE(costs->info.layers[0].gateable);
  EXPECT_FALSE(costs->info.layers[1].gateable);
  EXPECT_TRUE(costs->info.layers[2].gateable);
}

TEST(CalibrationFile, BringsLaddersAndOperatingPointsBack) {
  const std::string path = SamplePath("ladders.safetensors");
  const CalibrationData data = SampleWithLadders();
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  const auto read = ReadCalibrationFile(path, SampleModel());
  ASSERT_TRUE(read.ok()) << read.status();
  for (const int layer : {0, 2}) {
    EXPECT_TRUE(at::equal(read->layers[layer].ladder_weight, data.layers[layer].ladder_weight));
    EXPECT_TRUE(at::equal(read->layers[layer].ladder_bias, data.layers[layer].ladder_bias));
    EXPECT_TRUE(at::equal(read->layers[layer].ladder_neurons, data.layers[layer].ladder_neurons));
  }
  EXPECT_FALSE(read->layers[1].ladder_neurons.defined());
  // Also without reading a tensor.
  const auto described = ReadCalibrationFileInfo(path);
  ASSERT_TRUE(described.ok()) << described.status();
  for (const CalibrationInfo* info : {&read->info, &*described}) {
    EXPECT_EQ(info->layers[0].ladder_neurons, 3);
    EXPECT_EQ(info->layers[1].ladder_neurons, 0);
    EXPECT_EQ(info->layers[2].ladder_neurons, 3);
    EXPECT_EQ(info->ingredients, data.info.ingredients);
    ASSERT_EQ(info->operating_points.size(), 2u);
    const OperatingPoint& point = info->operating_points[0];
    const OperatingPoint& written = data.info.operating_points[0];
    EXPECT_EQ(point.name, "1%");
    for (double OperatingPoint::*member :
         {&OperatingPoint::budget, &OperatingPoint::cost, &OperatingPoint::cost_low, &OperatingPoint::cost_high,
          &OperatingPoint::work_saved, &OperatingPoint::linear_fraction, &OperatingPoint::ladder_fraction}) {
      EXPECT_EQ(point.*member, written.*member);
    }
    ASSERT_EQ(point.layers.size(), 3u);
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(point.layers[layer].linear_threshold, written.layers[layer].linear_threshold);
      EXPECT_EQ(point.layers[layer].ladder_threshold, written.layers[layer].ladder_threshold);
    }
  }
}

TEST(CalibrationFile, BringsMeanActivationsBackWhereThereAreAny) {
  const std::string path = SamplePath("means.safetensors");
  CalibrationData data = SampleCalibration();
  data.layers[1].neuron_mean = at::randn({kMlp});
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  const auto read = ReadCalibrationFile(path, SampleModel());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(at::equal(read->layers[1].neuron_mean, data.layers[1].neuron_mean));
  EXPECT_FALSE(read->layers[0].neuron_mean.defined());
  const auto described = ReadCalibrationFileInfo(path);
  ASSERT_TRUE(described.ok()) << described.status();
  for (const CalibrationInfo* info : {&read->info, &*described}) {
    EXPECT_FALSE(info->layers[0].neuron_means);
    EXPECT_TRUE(info->layers[1].neuron_means);
  }
  const auto placed = PlaceCalibration(data, SampleModel());
  EXPECT_TRUE(at::equal(placed->layer(1).neuron_mean, data.layers[1].neuron_mean));
  EXPECT_TRUE(placed->info().layers[1].neuron_means);
  EXPECT_FALSE(placed->info().layers[0].neuron_means);
}

TEST(CalibrationFile, PlacesTheConsensusNeuronsRowsOfTheMlp) {
  ModelWeights model = SampleModel();
  for (const bool gated : {false, true}) {
    model.config.gated_mlp = gated;
    for (LayerWeights& layer : model.layers) {
      layer.mlp_in = {at::randn({gated ? 2 * kMlp : kMlp, kModel}), at::randn({gated ? 2 * kMlp : kMlp})};
    }
    CalibrationData data = SampleCalibration();
    data.info.layers[2].consensus.clear();
    const auto placed = PlaceCalibration(data, model);
    const LinearWeights& consensus = *placed->layer(0).consensus_in;
    ASSERT_EQ(consensus.weight.sizes(), at::IntArrayRef({2, kModel}));
    EXPECT_TRUE(at::equal(consensus.weight[0], model.layers[0].mlp_in.weight[kMlp - 1]));
    EXPECT_TRUE(at::equal(consensus.weight[1], model.layers[0].mlp_in.weight[0]));
    EXPECT_TRUE(at::equal(consensus.bias[0], model.layers[0].mlp_in.bias[kMlp - 1]));
    EXPECT_FALSE(placed->layer(2).consensus_in.has_value());
  }
}

TEST(CalibrationFile, TakesALaddersNeuronsInEitherWidth) {
  std::map<std::string, at::Tensor> tensors = TensorsOf(SampleWithLadders());
  tensors["layers.2.ladder.neurons"] = at::tensor({0, 19}, at::kInt);
  const auto read = WriteAndRead(tensors, CalibrationMetadata(SampleWithLadders().info));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(at::equal(read->layers[2].ladder_neurons, at::tensor({0, 19}, at::kLong)));
}

TEST(CalibrationFile, PlacesTheLaddersPartsOfTheMlp) {
  ModelWeights model = SampleModel();
  for (const bool gated : {false, true}) {
    model.config.gated_mlp = gated;
    model.layers.assign(kLayers, {});
    for (LayerWeights& layer : model.layers) {
      layer.mlp_in = {at::randn({gated ? 2 * kMlp : kMlp, kModel}), at::randn({gated ? 2 * kMlp : kMlp})};
      layer.mlp_out = {at::randn({kModel, kMlp}), at::randn({kModel})};
    }
    const CalibrationData data = SampleWithLadders();
    const auto placed = PlaceCalibration(data, model);
    EXPECT_FALSE(placed->layer(1).ladder.has_value());
    EXPECT_EQ(placed->info().layers[2].ladder_neurons, 3);
    const LoadedCalibration::Ladder& ladder = *placed->layer(2).ladder;
    const std::vector<int> neurons = {1, 4, kMlp - 3};
    ASSERT_EQ(ladder.in.weight.size(0), gated ? 6 : 3);
    ASSERT_EQ(ladder.joint.weight.size(1), kModel + 3);
    EXPECT_TRUE(at::equal(ladder.joint.weight.narrow(1, 0, kModel), data.layers[2].ladder_weight));
    EXPECT_TRUE(at::equal(ladder.joint.bias, data.layers[2].ladder_bias));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(ladder.in.weight[i], model.layers[2].mlp_in.weight[neurons[i]]));
      EXPECT_TRUE(at::equal(ladder.in.bias[i], model.layers[2].mlp_in.bias[neurons[i]]));
      EXPECT_TRUE(
          at::equal(ladder.joint.weight.select(1, kModel + i), model.layers[2].mlp_out.weight.select(1, neurons[i])));
      if (!gated) continue;
      EXPECT_TRUE(at::equal(ladder.in.weight[3 + i], model.layers[2].mlp_in.weight[kMlp + neurons[i]]));
      EXPECT_TRUE(at::equal(ladder.in.bias[3 + i], model.layers[2].mlp_in.bias[kMlp + neurons[i]]));
    }
  }
}

TEST(CalibrationFile, IsPlacedInTheModelsDtype) {
  ModelWeights model = SampleModel();
  model.token_embedding = model.token_embedding.to(at::kBFloat16);
  const CalibrationData data = SampleCalibration();
  const auto placed = PlaceCalibration(data, model);
  const LoadedCalibration::Layer& layer = placed->layer(1);
  EXPECT_EQ(layer.surrogate.weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(layer.surrogate.bias.scalar_type(), at::kFloat);
  EXPECT_EQ(layer.gate_bias, data.layers[1].gate_bias.item<float>());
  EXPECT_TRUE(at::equal(layer.consensus_rows, at::tensor({kMlp - 1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(layer.exception_rows, at::tensor({7}, at::kLong)));
  EXPECT_EQ(&LoadedCalibration::From(*placed), placed.get());
}

}  // namespace
}  // namespace gatehouse::testing
