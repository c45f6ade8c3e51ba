#ifndef GATEHOUSE_TESTS_ENGINE_MODEL_MODEL_DIRECTORY_H_
#define GATEHOUSE_TESTS_ENGINE_MODEL_MODEL_DIRECTORY_H_

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/model/weights.h"

namespace gatehouse::testing {

// A folder of the test's own, removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes a file into the folder and returns its path.
  std::string Write(std::string_view name, std::string_view bytes) const;

 private:
  std::string path_;
};

using Tensors = std::map<std::string, at::Tensor>;

// A copy of one of the models of tests/data/models that a test may damage.
class ModelDirectory {
 public:
  explicit ModelDirectory(const std::string& fixture);

  const std::string& path() const { return folder_.path(); }
  const TemporaryFolder& folder() const { return folder_; }

  // Merges `patch` into config.json; a null removes its key.
  void EditConfig(const nlohmann::json& patch);

  Tensors ReadTensors() const;
  void WriteTensors(const Tensors& tensors);

  // Two files and an index in the place of model.safetensors; the tensors alternate.
  void Shard();
  nlohmann::json ReadIndex() const;
  void WriteIndex(const nlohmann::json& index);

  absl::StatusOr<ModelWeights> Load(at::ScalarType dtype = at::kFloat) const;
  // The logits of a fixed sequence, [tokens, vocab] float32; the test fails where the
  // model does not load.
  at::Tensor Logits() const;

 private:
  TemporaryFolder folder_;
};

// Folders of the repository and of the data beside it.
std::string RepositoryPath(std::string_view relative);
std::string FixturePath(const std::string& fixture);

// The model of a directory, which must load; from here on LibTorch uses one thread, as
// waking another costs more than these models' work.
ModelWeights LoadModel(const std::string& directory, at::ScalarType dtype = at::kFloat);

nlohmann::json ReadJson(const std::string& path);

// The largest absolute difference of two tensors of one shape; infinite where
// the shapes differ or a value is NaN.
double MaxDifference(const at::Tensor& a, const at::Tensor& b);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_MODEL_MODEL_DIRECTORY_H_
