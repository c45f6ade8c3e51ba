#include "server/engine/training/saved_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/safetensors.h"
#include "tests/engine/model/model_directory.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::_;
namespace fs = std::filesystem;

std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(RepositoryPath("tests/data/models"))) {
    if (fs::exists(entry.path() / "model.safetensors")) names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(SavedModel, HasTheTensorsOfTheCheckpointItCameFrom) {
  const std::vector<std::string> fixtures = Fixtures();
  EXPECT_GE(fixtures.size(), 15u);
  for (const std::string& name : fixtures) {
    SCOPED_TRACE(name);
    const SafetensorsFile file = SafetensorsFile::Open(FixturePath(name) + "/model.safetensors").value();
    const Tensors tensors = CheckpointTensors(LoadModel(FixturePath(name)));
    EXPECT_EQ(tensors.size(), file.entries().size());
    for (const auto& [key, entry] : file.entries()) {
      ASSERT_TRUE(tensors.contains(key)) << key;
      EXPECT_TRUE(at::equal(tensors.at(key), file.Read(key).value())) << key;
    }
  }
}

TEST(SavedModel, LoadsAgainWithItsSurrogatesBesideIt) {
  for (const char* name : {"gpt2", "neox-no-bias-tied", "llama"}) {
    SCOPED_TRACE(name);
    const ModelDirectory source(name);
    source.folder().Write("tokenizer.json", "{}");
    const ModelWeights model = source.Load().value();
    const int64_t d = model.config.d_model;
    TrainableModel trained(model, 2);
    {
      const c10::NoGradGuard no_grad;
      for (const Parameter& parameter : trained.parameters()) parameter.value.mul_(1.25);
    }
    trained.Linearize(1, {at::eye(d), at::ones({d}), {}});
    CalibrationInfo info;
    info.name = "default";
    info.sink_positions = 2;
    const TemporaryFolder folder;
    const std::string directory = folder.File("model");
    ASSERT_TRUE(SaveTrainedModel(directory, source.path(), trained, info).ok());
    // Once more, over what is there.
    ASSERT_TRUE(SaveTrainedModel(directory, source.path(), trained, info).ok());
    EXPECT_FALSE(fs::exists(directory + ".unfinished"));
    EXPECT_TRUE(fs::exists(directory + "/tokenizer.json"));

    const ModelWeights saved = LoadModel(directory);
    const at::Tensor ids = at::arange(24, at::kLong).view({2, 12});
    EXPECT_TRUE(at::equal(PlainForward(saved, ids), PlainForward(trained.weights(), ids).detach()));
    EXPECT_NE(saved.fingerprint, model.fingerprint);
    EXPECT_EQ(saved.config.tied_output, model.config.tied_output);
    const absl::StatusOr<CalibrationData> calibration =
        ReadCalibrationFile(directory + "/calibrations/default.safetensors", saved);
    ASSERT_TRUE(calibration.ok()) << calibration.status();
    EXPECT_TRUE(at::equal(calibration->layers[1].surrogate_weight, at::eye(d)));
    EXPECT_EQ(calibration->layers[0].gate_bias.item<float>(), -100);
    EXPECT_EQ(calibration->layers[1].gate_bias.item<float>(), 100);
    EXPECT_FALSE(calibration->info.layers[0].gateable);
    EXPECT_TRUE(calibration->info.layers[1].gateable);
  }
}

TEST(SavedModel, SaysThatItsWeightsAreFloat32) {
  ModelDirectory source("gpt2");
  source.EditConfig({{"dtype", "bfloat16"}});
  const ModelWeights model = source.Load(at::kBFloat16).value();
  const TemporaryFolder folder;
  ASSERT_TRUE(SaveTrainedModel(folder.File("model"), source.path(), TrainableModel(model, 0), {}).ok());
  EXPECT_EQ(ReadJson(folder.File("model/config.json"))["dtype"], "float32");
}

TEST(SavedModel, LeavesNothingWhereItFails) {
  const ModelWeights model = LoadModel(FixturePath("gpt2"));
  const TemporaryFolder folder;
  const absl::Status status =
      SaveTrainedModel(folder.File("model"), folder.File("nowhere"), TrainableModel(model, 0), {});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace gatehouse::testing
