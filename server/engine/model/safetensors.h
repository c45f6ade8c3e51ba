#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace gatehouse {

// A safetensors file, mapped and checked whole at opening: header length, JSON,
// dtypes, shapes (overflow included), offsets in bounds, no overlap, no holes.
// Move-only; reading is thread-safe.
class SafetensorsFile {
 public:
  struct Entry {
    std::string dtype;  // as in the file: "F32", "BF16", …
    std::vector<int64_t> shape;
    std::string_view bytes;  // into the mapping; any alignment
  };

  // NotFound for a missing file; InvalidArgument, naming file and tensor, otherwise.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The raw header JSON.
  std::string_view header() const { return header_; }

  // A copy in the file's own dtype, on the CPU.  NotFound naming the tensor;
  // InvalidArgument for a dtype that is no floating-point or integer type here.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;

  // Like Read, but without copying where the bytes are aligned: valid while this object
  // lives, and never to be written to.
  absl::StatusOr<at::Tensor> View(const std::string& name) const;

 private:
  SafetensorsFile(MappedFile file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  MappedFile file_;
  std::string path_;
  std::string_view header_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes a safetensors file in one step (see WriteFileAtomically).  Tensors are made
// contiguous and moved to the CPU.
absl::Status WriteSafetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_H_
