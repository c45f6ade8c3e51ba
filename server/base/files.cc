#include "server/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

absl::Status ErrnoError(std::string_view what, const std::string& path) {
  const int error = errno;
  const std::string message = StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

// Closes a file descriptor at the end of a scope.
struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
};

// Without waiting for a writer where the path is a pipe.
FileDescriptor OpenToRead(const std::string& path) {
  return FileDescriptor{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
}

// Size of what OpenToRead opened; fails where it could not, or it is no regular file.
absl::StatusOr<size_t> RegularSize(int fd, const std::string& path) {
  if (fd < 0) return ErrnoError("cannot open", path);
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoError("cannot stat", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(StrCat(path, " is not a regular file"));
  return static_cast<size_t>(info.st_size);
}

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("cannot write", path);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteAndRename(const std::string& temporary, const std::string& path,
                            std::span<const std::string_view> pieces) {
  {
    FileDescriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)};
    if (file.fd < 0) return ErrnoError("cannot create", temporary);
    for (const std::string_view piece : pieces) GH_RETURN_IF_ERROR(WriteAll(file.fd, piece, temporary));
    if (fsync(file.fd) != 0) return ErrnoError("cannot flush", temporary);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return ErrnoError("cannot rename to", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  FileDescriptor file = OpenToRead(path);
  GH_ASSIGN_OR_RETURN(const size_t size, RegularSize(file.fd, path));
  return InputFile(std::exchange(file.fd, -1), size, path);
}

InputFile::InputFile(InputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status InputFile::Read(uint64_t offset, std::span<char> out) const {
  while (!out.empty()) {
    const ssize_t count = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError("cannot read", path_);
    if (count == 0) return absl::DataLossError(StrCat(path_, " became shorter while it was read"));
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit) {
  // A file that shrinks meanwhile is short.
  const FileDescriptor file = OpenToRead(path);
  GH_ASSIGN_OR_RETURN(const size_t size, RegularSize(file.fd, path));
  if (static_cast<int64_t>(size) > limit) {
    return absl::ResourceExhaustedError(StrCat(path, " holds ", size, " bytes, more than the limit of ", limit));
  }
  std::string content(size, '\0');
  size_t got = 0;
  while (got < size) {
    const ssize_t count = read(file.fd, content.data() + got, size - got);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError("cannot read", path);
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  content.resize(got);
  return content;
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  return WriteFileAtomically(path, std::span(&bytes, 1));
}

absl::Status WriteFileAtomically(const std::string& path, std::span<const std::string_view> pieces) {
  static std::atomic<uint64_t> counter{0};
  const std::string temporary = StrCat(path, ".tmp-", getpid(), "-", counter.fetch_add(1));
  const absl::Status status = WriteAndRename(temporary, path, pieces);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    errno = error.value();
    return ErrnoError("cannot create folder", path);
  }
  return absl::OkStatus();
}

}  // namespace gatehouse
