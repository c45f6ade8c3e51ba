#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace gatehouse {

// A safetensors file.  Its description is read and checked whole at opening: header length,
// JSON, dtypes, shapes (overflow included), offsets in bounds, no overlap, no holes.  Tensors
// are read one by one when they are asked for, so no more of the file is in memory than
// somebody holds; see InputFile for why it is not mapped.  Move-only; reading is thread-safe.
class SafetensorsFile {
 public:
  struct Entry {
    std::string dtype;  // as in the file: "F32", "BF16", …
    std::vector<int64_t> shape;
    uint64_t begin = 0, bytes = 0;  // where its data lies in the file; any alignment
  };

  // NotFound for a missing file; InvalidArgument, naming file and tensor, otherwise.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The raw header JSON.
  std::string_view header() const { return header_; }

  // A copy in the file's own dtype, on the CPU.  NotFound naming the tensor;
  // InvalidArgument for a dtype that is no floating-point or integer type here; DataLoss where
  // the file has become shorter since it was opened.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;
  // Fills `out` with bytes of a tensor's data from `offset` on, which it has.
  absl::Status ReadBytes(const Entry& entry, uint64_t offset, std::span<char> out) const {
    return file_.Read(entry.begin + offset, out);
  }

 private:
  SafetensorsFile(InputFile file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  InputFile file_;
  std::string path_;
  std::string header_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes a safetensors file in one step (see WriteFileAtomically).  Tensors are made
// contiguous and moved to the CPU.
absl::Status WriteSafetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_H_
