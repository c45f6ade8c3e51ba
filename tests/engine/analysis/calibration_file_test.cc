#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/engine/gating/calibration_description.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/safetensors.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;
using Json = nlohmann::json;

constexpr int kLayers = 3, kModel = 8, kMlp = 20;

ModelWeights Model() {
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

CalibrationData Data() {
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

// With a ladder in layers 0 and 2, and two operating points.
CalibrationData DataWithLadders() {
  CalibrationData data = Data();
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

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + "-" + name;
}

std::map<std::string, at::Tensor> Tensors(const CalibrationData& data) {
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

// Writes a file as a researcher would and reads it.
absl::StatusOr<CalibrationData> WriteAndRead(const std::map<std::string, at::Tensor>& tensors,
                                             const std::map<std::string, std::string>& metadata) {
  const std::string path = Path("by-hand.safetensors");
  EXPECT_TRUE(WriteSafetensors(path, tensors, metadata).ok());
  return ReadCalibrationFile(path, Model());
}

TEST(CalibrationFile, ComesBackAsItWasWritten) {
  const std::string path = Path("round.safetensors");
  const CalibrationData data = Data();
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  const auto read = ReadCalibrationFile(path, Model());
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
  const std::string path = Path("finger.safetensors");
  ASSERT_TRUE(WriteCalibrationFile(path, Data()).ok());
  const auto read = ReadCalibrationFile(path, Model());
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
  std::map<std::string, at::Tensor> tensors = Tensors(Data());
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
  const std::string path = Path("ladders.safetensors");
  const CalibrationData data = DataWithLadders();
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  const auto read = ReadCalibrationFile(path, Model());
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
  const std::string path = Path("means.safetensors");
  CalibrationData data = Data();
  data.layers[1].neuron_mean = at::randn({kMlp});
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  const auto read = ReadCalibrationFile(path, Model());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(at::equal(read->layers[1].neuron_mean, data.layers[1].neuron_mean));
  EXPECT_FALSE(read->layers[0].neuron_mean.defined());
  const auto described = ReadCalibrationFileInfo(path);
  ASSERT_TRUE(described.ok()) << described.status();
  for (const CalibrationInfo* info : {&read->info, &*described}) {
    EXPECT_FALSE(info->layers[0].neuron_means);
    EXPECT_TRUE(info->layers[1].neuron_means);
  }
  const auto placed = PlaceCalibration(data, Model());
  EXPECT_TRUE(at::equal(placed->layer(1).neuron_mean, data.layers[1].neuron_mean));
  EXPECT_TRUE(placed->info().layers[1].neuron_means);
  EXPECT_FALSE(placed->info().layers[0].neuron_means);
}

TEST(CalibrationFile, PlacesTheConsensusNeuronsRowsOfTheMlp) {
  ModelWeights model = Model();
  for (const bool gated : {false, true}) {
    model.config.gated_mlp = gated;
    for (LayerWeights& layer : model.layers) {
      layer.mlp_in = {at::randn({gated ? 2 * kMlp : kMlp, kModel}), at::randn({gated ? 2 * kMlp : kMlp})};
    }
    CalibrationData data = Data();
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
  std::map<std::string, at::Tensor> tensors = Tensors(DataWithLadders());
  tensors["layers.2.ladder.neurons"] = at::tensor({0, 19}, at::kInt);
  const auto read = WriteAndRead(tensors, CalibrationMetadata(DataWithLadders().info));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(at::equal(read->layers[2].ladder_neurons, at::tensor({0, 19}, at::kLong)));
}

TEST(CalibrationFile, WithAWrongLadderIsRefusedByTheTensorsName) {
  const auto refuses = [](const std::function<void(std::map<std::string, at::Tensor>&)>& damage, const char* name) {
    std::map<std::string, at::Tensor> tensors = Tensors(DataWithLadders());
    damage(tensors);
    EXPECT_THAT(WriteAndRead(tensors, CalibrationMetadata(DataWithLadders().info)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  const auto neurons = [](const at::Tensor& wrong) {
    return [wrong](auto& t) { t["layers.0.ladder.neurons"] = wrong; };
  };
  refuses([](auto& t) { t.erase("layers.0.ladder.weight"); }, "layers.0.ladder.weight is missing");
  refuses([](auto& t) { t.erase("layers.0.ladder.bias"); }, "layers.0.ladder.bias is missing");
  refuses([](auto& t) { t.erase("layers.0.ladder.neurons"); }, "layers.0.ladder.neurons is missing");
  refuses([](auto& t) { t["layers.1.ladder.bias"] = at::zeros({kModel}); }, "layers.1.ladder.neurons is missing");
  refuses([](auto& t) { t["layers.0.ladder.weight"] = at::zeros({kModel, 2}); }, "layers.0.ladder.weight");
  refuses([](auto& t) { t["layers.0.ladder.bias"][2] = std::nan(""); }, "layers.0.ladder.bias");
  refuses([](auto& t) { t["layers.0.ladder.columns"] = at::zeros({2}); }, "layers.0.ladder.columns");
  refuses(neurons(at::tensor({1.0f, 2.0f})), "layers.0.ladder.neurons has dtype F32");
  refuses(neurons(at::tensor({-1, 2}, at::kLong)), "layers.0.ladder.neurons holds -1 at index 0");
  refuses(neurons(at::tensor({2, kMlp}, at::kLong)), "holds 20 at index 1");
  refuses(neurons(at::tensor({2, 2}, at::kLong)), "holds 2 at index 1");
  refuses(neurons(at::tensor({5, 2}, at::kLong)), "holds 2 at index 1");
  refuses(neurons(at::tensor({int64_t{2}, std::numeric_limits<int64_t>::max()}, at::kLong)), "at index 1");
  refuses(neurons(at::zeros({2, 1}, at::kLong)), "layers.0.ladder.neurons has shape [2, 1]");
  refuses(neurons(at::zeros({0}, at::kLong)), "layers.0.ladder.neurons has shape [0]");
  refuses(
      [](auto& t) {
        for (const char* part : {"weight", "bias", "neurons"}) t.erase(std::string("layers.2.ladder.") + part);
      },
      "has a ladder_threshold in layer 2, which has no ladder");
}

TEST(CalibrationFile, WithAWrongOperatingPointIsRefusedByTheKey) {
  const auto refuses = [](const std::function<void(Json&)>& damage, const char* key) {
    std::map<std::string, std::string> metadata = CalibrationMetadata(DataWithLadders().info);
    Json description = Json::parse(metadata["calibration"]);
    damage(description);
    metadata["calibration"] = description.dump();
    EXPECT_THAT(WriteAndRead(Tensors(DataWithLadders()), metadata),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  };
  const auto in_point = [&](const char* key, const Json& value, const char* message) {
    refuses([&](Json& j) { j["operating_points"][0][key] = value; }, message);
  };
  refuses([](Json& j) { j["ingredients"] = "ladders"; }, "calibration.ingredients");
  refuses([](Json& j) { j["ingredients"][1] = 3; }, "calibration.ingredients");
  refuses([](Json& j) { j["operating_points"] = Json::object(); }, "calibration.operating_points");
  refuses([](Json& j) { j["operating_points"][1] = 3; }, "calibration.operating_points[1]");
  refuses([](Json& j) { j["operating_points"][1]["name"] = "1%"; }, "two of the name of entry 1");
  refuses([](Json& j) { j["operating_points"][0].erase("name"); }, "operating_points[0].name");
  in_point("name", "", "operating_points[0].name");
  in_point("name", 1, "operating_points[0].name");
  in_point("name", std::string(65, '1'), "operating_points[0].name has 65 bytes, more than 64");
  refuses([](Json& j) { j["corpus"] = std::string(257, 'x'); }, "calibration.corpus has 257 bytes, more than 256");
  refuses([](Json& j) { j["ingredients"] = {std::string(257, 'x')}; }, "calibration.ingredients");
  in_point("budget", -0.01, "operating_points[0].budget");
  in_point("budget", "1%", "operating_points[0].budget");
  in_point("cost", -2, "operating_points[0].cost");
  in_point("cost_low", nullptr, "operating_points[0].cost_low");
  in_point("cost_high", true, "operating_points[0].cost_high");
  in_point("work_saved", 1.01, "operating_points[0].work_saved");
  in_point("linear_fraction", -0.1, "operating_points[0].linear_fraction");
  in_point("ladder_fraction", 2, "operating_points[0].ladder_fraction");
  in_point("colour", "red", "operating_points[0].colour");
  in_point("layers", Json::array(), "operating_points[0].layers");
  refuses([](Json& j) { j["operating_points"][0].erase("layers"); }, "operating_points[0].layers");
  refuses([](Json& j) { j["operating_points"][0]["layers"][1] = 0.5; }, "operating_points[0].layers[1]");
  refuses([](Json& j) { j["operating_points"][0]["layers"][1]["linear_threshold"] = 1.5; },
          "operating_points[0].layers[1].linear_threshold");
  refuses([](Json& j) { j["operating_points"][0]["layers"][1]["ladder_threshold"] = -2; },
          "operating_points[0].layers[1].ladder_threshold");
  refuses([](Json& j) { j["operating_points"][0]["layers"][2]["threshold"] = 0.5; },
          "operating_points[0].layers[2].threshold");
  refuses([](Json& j) { j["operating_points"][0]["layers"][1]["ladder_threshold"] = 0.5; },
          "1% has a ladder_threshold in layer 1, which has no ladder");
}

TEST(CalibrationFile, OfAnotherModelIsRefused) {
  const std::string path = Path("other.safetensors");
  CalibrationData data = Data();
  data.info.model_fingerprint = "sha256:another";
  data.layers.pop_back();
  data.info.layers.pop_back();
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  EXPECT_THAT(
      ReadCalibrationFile(path, Model()),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("sha256:another"), HasSubstr("sha256:model"))));
  EXPECT_TRUE(ReadCalibrationFileInfo(path).ok());
}

TEST(CalibrationFile, ThatIsNotThereIsNotFound) {
  EXPECT_THAT(ReadCalibrationFile(Path("none"), Model()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(ReadCalibrationFileInfo(Path("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(CalibrationFile, WithAWrongTensorIsRefusedByTheTensorsName) {
  const auto refuses = [](const std::function<void(std::map<std::string, at::Tensor>&)>& damage, const char* name) {
    std::map<std::string, at::Tensor> tensors = Tensors(Data());
    damage(tensors);
    EXPECT_THAT(WriteAndRead(tensors, CalibrationMetadata(Data().info)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  refuses([](auto& t) { t.erase("layers.1.gate.bias"); }, "layers.1.gate.bias");
  refuses(
      [](auto& t) {
        t["layers.0.surrogate.weight"] = at::zeros({kModel, kModel + 1});
      },
      "layers.0.surrogate.weight");
  refuses([](auto& t) { t["layers.0.gate.weight"] = at::zeros({kModel, 1}); }, "layers.0.gate.weight");
  refuses([](auto& t) { t["layers.2.gate.bias"] = at::zeros({2}); }, "layers.2.gate.bias");
  refuses([](auto& t) { t["layers.2.gate.bias"] = at::zeros({1}, at::kLong); }, "layers.2.gate.bias");
  refuses([](auto& t) { t["layers.0.surrogate.bias"][3] = std::nan(""); }, "layers.0.surrogate.bias");
  refuses([](auto& t) { t["layers.0.surrogate.bias"] = at::full({kModel}, 1e300, at::kDouble); },
          "layers.0.surrogate.bias");
  refuses([](auto& t) { t["layers.2.gate.weight"][0] = -std::numeric_limits<float>::infinity(); },
          "layers.2.gate.weight");
  refuses([](auto& t) { t["layers.0.neuron_mean"] = at::zeros({kModel}); }, "layers.0.neuron_mean has shape");
  refuses([](auto& t) { t["layers.0.neuron_mean"] = at::full({kMlp}, std::nan("")); }, "layers.0.neuron_mean");
  refuses([](auto& t) { t["extra"] = at::zeros({1}); }, "extra");
  refuses([](auto& t) { t["layers.01.gate.bias"] = at::zeros({1}); }, "layers.01.gate.bias");
  refuses([](auto& t) { t["layers.-1.gate.bias"] = at::zeros({1}); }, "layers.-1.gate.bias");
  refuses([](auto& t) { t["layers.99999999999.gate.bias"] = at::zeros({1}); }, "layers.99999999999.gate.bias");
  refuses([](auto& t) { t["layers.7.gate.bias"] = at::zeros({1}); }, "layers.3.surrogate.weight is missing");
  refuses([](auto& t) { t.clear(); }, "no tensors");
}

TEST(CalibrationFile, WithAWrongDescriptionIsRefusedByTheKey) {
  const auto refuses = [](const std::function<void(Json&)>& damage, const char* key) {
    std::map<std::string, std::string> metadata = CalibrationMetadata(Data().info);
    Json description = Json::parse(metadata["calibration"]);
    damage(description);
    metadata["calibration"] = description.dump();
    EXPECT_THAT(WriteAndRead(Tensors(Data()), metadata), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  };
  refuses([](Json& j) { j = 3; }, "calibration is not a JSON object");
  refuses([](Json& j) { j["name"] = 3; }, "calibration.name");
  refuses([](Json& j) { j["sink_positions"] = -1; }, "calibration.sink_positions");
  refuses([](Json& j) { j["sink_positions"] = 33; }, "calibration.sink_positions");
  refuses([](Json& j) { j["sink_positions"] = 1.5; }, "calibration.sink_positions");
  refuses([](Json& j) { j["window_tokens"] = uint64_t{1} << 63; }, "calibration.window_tokens");
  refuses([](Json& j) { j["seed"] = -1; }, "calibration.seed");
  refuses([](Json& j) { j["gateable_cost_limit"] = "much"; }, "calibration.gateable_cost_limit");
  refuses([](Json& j) { j["layers"] = Json::object(); }, "calibration.layers");
  refuses([](Json& j) { j["layers"].push_back(Json::object()); }, "calibration.layers has 4");
  refuses([](Json& j) { j["layers"][1] = "x"; }, "calibration.layers[1]");
  refuses([](Json& j) { j["layers"][1]["linear_cost"] = nullptr; }, "calibration.layers[1].linear_cost");
  refuses([](Json& j) { j["layers"][2]["gateable"] = 1; }, "calibration.layers[2].gateable");
  refuses([](Json& j) { j["layers"][0]["consensus"] = 1; }, "calibration.layers[0].consensus");
  refuses([](Json& j) { j["layers"][0]["consensus"][0]["neuron"] = kMlp; }, "layers[0] names neuron 20");
  refuses([](Json& j) { j["layers"][0]["consensus"][0]["neuron"] = -1; }, "neuron");
  refuses([](Json& j) { j["layers"][0]["consensus"][0]["neuron"] = 0; }, "names neuron 0 twice");
  refuses([](Json& j) { j["layers"][0]["consensus"][0].erase("neuron"); }, "without neuron");
  refuses([](Json& j) { j["layers"][0]["consensus"][0]["base_rate"] = 1.5; }, "base_rate");
  refuses([](Json& j) { j["layers"][0]["exception"][0]["what"] = 1; }, "what");
  refuses([](Json& j) { j["layers"][0]["exception"][0] = 7; }, "calibration.layers[0].exception");
  refuses([](Json& j) { j["layers"][0]["gatable"] = true; }, "calibration.layers[0].gatable");
  refuses([](Json& j) { j["colour"] = "red"; }, "calibration.colour");
  refuses(
      [](Json& j) {
        for (int i = 0; i < 65; ++i) j["layers"][0]["gateway"].push_back({{"neuron", i}});
      },
      "at most 64");
}

TEST(CalibrationFile, WithWrongMetadataIsRefusedByTheKey) {
  const auto refuses = [](const std::function<void(std::map<std::string, std::string>&)>& damage, const char* key) {
    std::map<std::string, std::string> metadata = CalibrationMetadata(Data().info);
    damage(metadata);
    EXPECT_THAT(WriteAndRead(Tensors(Data()), metadata), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  };
  refuses([](auto& m) { m.erase("format"); }, "format");
  refuses([](auto& m) { m["format"] = "pt"; }, "format");
  refuses([](auto& m) { m["version"] = "2"; }, "version");
  refuses([](auto& m) { m.erase("version"); }, "version");
  refuses([](auto& m) { m.erase("model_fingerprint"); }, "model_fingerprint");
  refuses([](auto& m) { m["calibration"] = "{"; }, "calibration");
  refuses([](auto& m) { m["calibration"] = std::string(100'000, '['); }, "calibration");
}

// Whatever happens to a file, reading it ends in a status or in a calibration whose every
// number is finite and whose every index is in range.
TEST(CalibrationFile, NeverBreaksTheReaderHoweverItIsDamaged) {
  const std::string path = Path("mutant.safetensors");
  ASSERT_TRUE(WriteCalibrationFile(path, DataWithLadders()).ok());
  const std::string good = *ReadFile(path);
  std::mt19937 random(17);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    if (round % 4 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      const size_t reach = round % 4 == 1 ? bytes.size() : 4000;  // most of it in the header
      for (uint32_t i = 0; i <= random() % 4; ++i) bytes[random() % reach] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    const auto read = ReadCalibrationFile(path, Model());
    if (!read.ok()) {
      ++refused;
      continue;
    }
    for (const auto& [name, tensor] : Tensors(*read)) ASSERT_TRUE(tensor.isfinite().all().item<bool>()) << name;
    for (const LayerCalibration& layer : read->info.layers) {
      for (const NeuronFinding& finding : layer.consensus) ASSERT_TRUE(finding.neuron >= 0 && finding.neuron < kMlp);
    }
    for (const CalibrationData::Layer& layer : read->layers) {
      if (!layer.ladder_neurons.defined()) continue;
      ASSERT_TRUE(layer.ladder_neurons.min().item<int64_t>() >= 0 && layer.ladder_neurons.max().item<int64_t>() < kMlp);
    }
    for (const OperatingPoint& point : read->info.operating_points) {
      ASSERT_EQ(point.layers.size(), static_cast<size_t>(kLayers));
      for (const OperatingLayer& layer : point.layers) {
        ASSERT_TRUE(layer.linear_threshold >= -1 && layer.linear_threshold <= 1);
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(CalibrationFile, PlacesTheLaddersPartsOfTheMlp) {
  ModelWeights model = Model();
  for (const bool gated : {false, true}) {
    model.config.gated_mlp = gated;
    model.layers.assign(kLayers, {});
    for (LayerWeights& layer : model.layers) {
      layer.mlp_in = {at::randn({gated ? 2 * kMlp : kMlp, kModel}), at::randn({gated ? 2 * kMlp : kMlp})};
      layer.mlp_out = {at::randn({kModel, kMlp}), at::randn({kModel})};
    }
    const CalibrationData data = DataWithLadders();
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
  ModelWeights model = Model();
  model.token_embedding = model.token_embedding.to(at::kBFloat16);
  const CalibrationData data = Data();
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
}  // namespace gatehouse
