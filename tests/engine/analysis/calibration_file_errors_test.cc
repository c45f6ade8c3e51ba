// Calibration files that are refused, and how.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "server/base/files.h"
#include "server/engine/gating/calibration_description.h"
#include "server/engine/gating/loaded_calibration.h"
#include "tests/engine/analysis/calibration_sample.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(CalibrationFile, WithAWrongLadderIsRefusedByTheTensorsName) {
  const auto refuses = [](const std::function<void(std::map<std::string, at::Tensor>&)>& damage, const char* name) {
    std::map<std::string, at::Tensor> tensors = TensorsOf(SampleWithLadders());
    damage(tensors);
    EXPECT_THAT(WriteAndRead(tensors, CalibrationMetadata(SampleWithLadders().info)),
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
    std::map<std::string, std::string> metadata = CalibrationMetadata(SampleWithLadders().info);
    Json description = Json::parse(metadata["calibration"]);
    damage(description);
    metadata["calibration"] = description.dump();
    EXPECT_THAT(WriteAndRead(TensorsOf(SampleWithLadders()), metadata),
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
  const std::string path = SamplePath("other.safetensors");
  CalibrationData data = SampleCalibration();
  data.info.model_fingerprint = "sha256:another";
  data.layers.pop_back();
  data.info.layers.pop_back();
  ASSERT_TRUE(WriteCalibrationFile(path, data).ok());
  EXPECT_THAT(
      ReadCalibrationFile(path, SampleModel()),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("sha256:another"), HasSubstr("sha256:model"))));
  EXPECT_TRUE(ReadCalibrationFileInfo(path).ok());
}

TEST(CalibrationFile, ThatIsNotThereIsNotFound) {
  EXPECT_THAT(ReadCalibrationFile(SamplePath("none"), SampleModel()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(ReadCalibrationFileInfo(SamplePath("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(CalibrationFile, WithAWrongTensorIsRefusedByTheTensorsName) {
  const auto refuses = [](const std::function<void(std::map<std::string, at::Tensor>&)>& damage, const char* name) {
    std::map<std::string, at::Tensor> tensors = TensorsOf(SampleCalibration());
    damage(tensors);
    EXPECT_THAT(WriteAndRead(tensors, CalibrationMetadata(SampleCalibration().info)),
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
    std::map<std::string, std::string> metadata = CalibrationMetadata(SampleCalibration().info);
    Json description = Json::parse(metadata["calibration"]);
    damage(description);
    metadata["calibration"] = description.dump();
    EXPECT_THAT(WriteAndRead(TensorsOf(SampleCalibration()), metadata),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
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
    std::map<std::string, std::string> metadata = CalibrationMetadata(SampleCalibration().info);
    damage(metadata);
    EXPECT_THAT(WriteAndRead(TensorsOf(SampleCalibration()), metadata),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
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
  const std::string path = SamplePath("mutant.safetensors");
  ASSERT_TRUE(WriteCalibrationFile(path, SampleWithLadders()).ok());
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
    const auto read = ReadCalibrationFile(path, SampleModel());
    if (!read.ok()) {
      ++refused;
      continue;
    }
    for (const auto& [name, tensor] : TensorsOf(*read)) ASSERT_TRUE(tensor.isfinite().all().item<bool>()) << name;
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

}  // namespace
}  // namespace gatehouse::testing
