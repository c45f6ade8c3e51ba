#ifndef GATEHOUSE_SERVER_BASE_FILES_H_
#define GATEHOUSE_SERVER_BASE_FILES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gatehouse {

// A regular file, open for reading at any place.  It is not mapped into memory: of a file
// that shrinks meanwhile, a read is an error, where touching a map would end the process.
// Move-only; reading is thread-safe.
class InputFile {
 public:
  // NotFound, PermissionDenied or Internal, naming the path; InvalidArgument for what is no
  // regular file.
  static absl::StatusOr<InputFile> Open(const std::string& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  // As it was at opening.
  uint64_t size() const { return size_; }
  // Fills `out` with the bytes from `offset` on.  DataLoss, naming the path, where the file
  // has become too short for that.
  absl::Status Read(uint64_t offset, std::span<char> out) const;

 private:
  InputFile(int fd, uint64_t size, std::string path) : fd_(fd), size_(size), path_(std::move(path)) {}

  int fd_ = -1;
  uint64_t size_ = 0;
  std::string path_;
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
