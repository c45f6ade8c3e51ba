#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_CHECKPOINT_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_CHECKPOINT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/model/safetensors.h"

namespace gatehouse {

// The tensors of a model directory, from model.safetensors or from the shards that
// model.safetensors.index.json names.  Names are without `prefix` ("transformer."), which
// each name may have or lack.  Move-only; not thread-safe, as it keeps account of
// what was read.
class Checkpoint {
 public:
  // NotFound naming a missing file or a tensor of the index that its file lacks;
  // InvalidArgument for a damaged file, a shard outside the directory, or a name that is
  // there with and without the prefix.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory, std::string_view prefix);

  bool Has(const std::string& name) const { return tensors_.contains(name); }

  // A copy in the file's dtype, a floating-point one, and of `shape`.  NotFound,
  // InvalidArgument or DataLoss, naming the tensor as the file does.
  absl::StatusOr<at::Tensor> Get(const std::string& name, std::span<const int64_t> shape);
  // Accounts for a tensor, there or not, that adds nothing to the model.
  void Ignore(const std::string& name) {
    used_.insert(name);
    read_.erase(name);
  }

  // InvalidArgument naming a tensor that was neither read nor ignored.
  absl::Status CheckAllUsed() const;

  // SHA-256 over `essentials` and, for every tensor that was read, its name, dtype,
  // shape and (for a large one) a sample of its bytes.
  absl::StatusOr<std::string> Fingerprint(std::string_view essentials) const;

 private:
  struct Tensor {
    const SafetensorsFile* file = nullptr;
    std::string file_name;  // its name there
  };

  explicit Checkpoint(std::string directory) : directory_(std::move(directory)) {}
  absl::Status Add(const SafetensorsFile* file, const std::string& file_name, std::string_view prefix);
  absl::Status OpenSingle(const std::string& path, std::string_view prefix);
  absl::Status OpenShards(const std::string& index_path, std::string_view prefix);

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> used_;
  std::set<std::string> read_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_CHECKPOINT_H_
