#ifndef GATEHOUSE_SERVER_BASE_FILES_H_
#define GATEHOUSE_SERVER_BASE_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gatehouse {

// A file mapped read-only into memory for as long as this object lives.  Move-only;
// reading is thread-safe.
class MappedFile {
 public:
  // NotFound, PermissionDenied or Internal, naming the path.  An empty file maps to
  // an empty view.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }

 private:
  MappedFile(const char* data, size_t size) : data_(data), size_(size) {}

  const char* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file.  NotFound or Internal, naming the path; ResourceExhausted above
// `limit` bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit = int64_t{1} << 30);

// Replaces the file at `path` by `bytes` in one step, through a temporary file in
// the same folder that is flushed to disk before it is renamed: readers see the old
// content or the new, never a part.  ResourceExhausted when the disk is full.
absl::Status WriteFileAtomically(const std::string& path, std::string_view bytes);
// The same with the content in pieces, so that a large file need not exist twice in memory.
absl::Status WriteFileAtomically(const std::string& path, std::span<const std::string_view> pieces);

// Creates the folder and its parents where missing.
absl::Status MakeDirectories(const std::string& path);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_FILES_H_
