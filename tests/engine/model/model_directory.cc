#include "tests/engine/model/model_directory.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <limits>
#include <stdexcept>
#include <utility>

#include "server/base/files.h"
#include "server/engine/model/safetensors.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse::testing {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "gatehouse-test-XXXXXX").string();
  path_ = mkdtemp(name.data()) == nullptr ? "" : name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(std::string_view name, std::string_view bytes) const {
  const std::string path = File(name);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

ModelDirectory::ModelDirectory(const std::string& fixture) {
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(FixturePath(fixture) + "/" + file, folder_.File(file));
  }
}

void ModelDirectory::EditConfig(const nlohmann::json& patch) {
  nlohmann::json config = ReadJson(folder_.File("config.json"));
  for (const auto& [key, value] : patch.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  folder_.Write("config.json", config.dump());
}

Tensors ModelDirectory::ReadTensors() const {
  const SafetensorsFile file = SafetensorsFile::Open(folder_.File("model.safetensors")).value();
  Tensors tensors;
  for (const auto& [name, entry] : file.entries()) tensors[name] = file.Read(name).value();
  return tensors;
}

void ModelDirectory::WriteTensors(const Tensors& tensors) {
  ASSERT_TRUE(WriteSafetensors(folder_.File("model.safetensors"), tensors, {{"format", "pt"}}).ok());
}

void ModelDirectory::Shard() {
  const char* const kShards[] = {"m-1.safetensors", "m-2.safetensors"};
  Tensors parts[2];
  nlohmann::json map = nlohmann::json::object();
  int turn = 0;
  for (const auto& [name, tensor] : ReadTensors()) {
    map[name] = kShards[turn];
    parts[turn][name] = tensor;
    turn = 1 - turn;
  }
  for (int i : {0, 1}) ASSERT_TRUE(WriteSafetensors(folder_.File(kShards[i]), parts[i], {}).ok());
  WriteIndex({{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  fs::remove(folder_.File("model.safetensors"));
}

nlohmann::json ModelDirectory::ReadIndex() const { return ReadJson(folder_.File("model.safetensors.index.json")); }

void ModelDirectory::WriteIndex(const nlohmann::json& index) {
  folder_.Write("model.safetensors.index.json", index.dump());
}

absl::StatusOr<ModelWeights> ModelDirectory::Load(at::ScalarType dtype) const {
  return LoadModelWeights(path(), dtype, at::kCPU);
}

at::Tensor ModelDirectory::Logits() const {
  at::set_num_threads(1);
  const absl::StatusOr<ModelWeights> model = Load();
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return at::full({1}, std::numeric_limits<float>::quiet_NaN());
  }
  const at::Tensor ids = at::arange(1, 41, at::kLong).mul(37).remainder(model->config.vocab_size).unsqueeze(0);
  return PlainForward(*model, ids)[0];
}

std::string RepositoryPath(std::string_view relative) {
  const char* source = getenv("GATEHOUSE_SOURCE_DIR");
  return std::string(source == nullptr ? "." : source) + "/" + std::string(relative);
}

std::string FixturePath(const std::string& fixture) { return RepositoryPath("tests/data/models/" + fixture); }

ModelWeights LoadModel(const std::string& directory, at::ScalarType dtype) {
  at::set_num_threads(1);
  absl::StatusOr<ModelWeights> model = LoadModelWeights(directory, dtype, at::kCPU);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *std::move(model);
}

nlohmann::json ReadJson(const std::string& path) { return nlohmann::json::parse(ReadFile(path).value()); }

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  const double difference = (a - b).abs().max().item<double>();
  return difference >= 0 ? difference : std::numeric_limits<double>::infinity();
}

}  // namespace gatehouse::testing
