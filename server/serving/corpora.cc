#include "server/serving/corpora.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/base/digest.h"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/utf8_stream.h"

namespace gatehouse {
namespace {

constexpr std::string_view kNamePrefix = "corpora/";
constexpr size_t kMaxLabelBytes = 256;

absl::Status WriteError(std::string_view what) {
  const int error = errno;
  const std::string message = StrCat("cannot ", what, " the corpus: ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return WithReason(absl::ResourceExhaustedError(message), reason::kDiskFull);
  }
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(message);
  return absl::InternalError(message);
}

// An upload's bytes, in a file that goes away with this object unless it was kept.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (file_ < 0) return;
    close(file_);
    unlink(path_.c_str());
  }

  absl::Status Open() {
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return file_ < 0 ? WriteError("create") : absl::OkStatus();
  }

  absl::Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return WriteError("write");
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  // Flushes the file and gives it its name, replacing one of the same content.
  absl::Status KeepAs(const std::string& path) {
    if (fsync(file_) != 0) return WriteError("flush");
    if (rename(path_.c_str(), path.c_str()) != 0) return WriteError("name");
    close(std::exchange(file_, -1));
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  int file_ = -1;
};

class CorpusUploadImpl final : public CorpusUpload {
 public:
  CorpusUploadImpl(std::string folder, const std::string& temporary, std::string label, int64_t limit_bytes)
      : folder_(std::move(folder)), label_(std::move(label)), limit_bytes_(limit_bytes), file_(temporary) {}

  absl::Status Open() { return file_.Open(); }

  absl::Status Append(std::string_view bytes) override {
    if (failed_.ok()) failed_ = TryAppend(bytes);
    return failed_;
  }

  absl::StatusOr<Corpus> Finish() override {
    GH_RETURN_IF_ERROR(failed_);
    failed_ = absl::FailedPreconditionError("the upload has ended");
    if (size_ == 0) return WithReason(absl::InvalidArgumentError("the corpus is empty"), reason::kEmptyInput);
    characters_.Finish();
    GH_RETURN_IF_ERROR(CheckUtf8());
    const std::string sha256 = digest_.HexDigest();
    const std::string path = StrCat(folder_, "/", sha256);
    GH_RETURN_IF_ERROR(file_.KeepAs(path));
    const nlohmann::json description = {{"label", label_}, {"size_bytes", size_}};
    GH_RETURN_IF_ERROR(WriteFileAtomically(StrCat(path, ".json"), description.dump()));
    return Corpus{.name = StrCat(kNamePrefix, sha256), .size_bytes = static_cast<uint64_t>(size_)};
  }

 private:
  absl::Status TryAppend(std::string_view bytes) {
    if (static_cast<int64_t>(bytes.size()) > limit_bytes_ - size_) {
      return WithReason(
          absl::ResourceExhaustedError(StrCat("the corpus is larger than the limit of ", limit_bytes_, " bytes")),
          reason::kUploadTooLarge);
    }
    characters_.Append(bytes);
    GH_RETURN_IF_ERROR(CheckUtf8());
    GH_RETURN_IF_ERROR(file_.Write(bytes));
    digest_.Update(bytes);
    size_ += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }

  absl::Status CheckUtf8() const {
    if (characters_.well_formed()) return absl::OkStatus();
    return WithReason(absl::InvalidArgumentError("the corpus is not UTF-8"), reason::kInvalidUtf8);
  }

  const std::string folder_, label_;
  const int64_t limit_bytes_;
  int64_t size_ = 0;
  TemporaryFile file_;
  Utf8Stream characters_;
  Sha256 digest_;
  absl::Status failed_;  // what Append and Finish return from now on
};

bool IsSha256(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == 64 && std::all_of(text.begin(), text.end(), is_hex);
}

std::string TemporaryPrefix(const std::string& replica) { return StrCat(".upload-", replica, "-"); }

}  // namespace

CorpusStore::CorpusStore(std::string folder, std::string replica, int64_t limit_bytes)
    : folder_(std::move(folder)), replica_(std::move(replica)), limit_bytes_(limit_bytes) {}

absl::StatusOr<std::unique_ptr<CorpusStore>> CorpusStore::Create(std::string folder, std::string replica,
                                                                 int64_t limit_bytes) {
  GH_RETURN_IF_ERROR(MakeDirectories(folder));
  std::vector<std::filesystem::path> left;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    if (file->path().filename().string().starts_with(TemporaryPrefix(replica))) left.push_back(file->path());
  }
  for (const auto& path : left) std::filesystem::remove(path, error);
  return std::unique_ptr<CorpusStore>(new CorpusStore(std::move(folder), std::move(replica), limit_bytes));
}

absl::StatusOr<std::unique_ptr<CorpusUpload>> CorpusStore::BeginUpload(const std::string& label) {
  const bool one_line = std::none_of(label.begin(), label.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  if (!(label.size() <= kMaxLabelBytes && one_line && IsUtf8(label))) {
    return absl::InvalidArgumentError(
        StrCat("display_name must be one line of UTF-8, of at most ", kMaxLabelBytes, " bytes"));
  }
  const std::string temporary = StrCat(folder_, "/", TemporaryPrefix(replica_), uploads_.fetch_add(1));
  auto upload = std::make_unique<CorpusUploadImpl>(folder_, temporary, label, limit_bytes_);
  GH_RETURN_IF_ERROR(upload->Open());
  return upload;
}

absl::StatusOr<CorpusStore::Found> CorpusStore::Find(const std::string& name) const {
  const std::string sha256 = name.starts_with(kNamePrefix) ? name.substr(kNamePrefix.size()) : "";
  if (!IsSha256(sha256)) {
    return absl::InvalidArgumentError("a corpus is named \"corpora/SHA256\", as its upload returned it");
  }
  Found found{.path = StrCat(folder_, "/", sha256), .label = "", .sha256 = sha256};
  std::error_code error;
  if (!std::filesystem::is_regular_file(found.path, error)) {
    return WithReason(absl::NotFoundError(StrCat("there is no ", name, " here: upload it first")),
                      reason::kCorpusNotFound);
  }
  std::filesystem::last_write_time(found.path, std::filesystem::file_time_type::clock::now(), error);
  const auto text = ReadFile(StrCat(found.path, ".json"), 1 << 16);
  const nlohmann::json description =
      text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false) : nlohmann::json();
  if (description.is_object() && description.contains("label") && description["label"].is_string()) {
    found.label = description["label"].get<std::string>();
  }
  return found;
}

void CorpusStore::Prune(size_t keep, const std::set<std::string>& needed) const {
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> unneeded;
  size_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder_, error), end; !error && file != end; file.increment(error)) {
    const std::string sha256 = file->path().filename();
    if (!IsSha256(sha256)) continue;
    ++count;
    std::error_code gone;
    const auto used = file->last_write_time(gone);
    if (!gone && !needed.contains(StrCat(kNamePrefix, sha256))) unneeded.emplace_back(used, file->path());
  }
  if (count <= keep) return;
  std::sort(unneeded.begin(), unneeded.end());
  unneeded.resize(std::min(unneeded.size(), count - keep));
  for (const auto& [used, path] : unneeded) {
    std::filesystem::remove(path, error);
    std::filesystem::remove(path.string() + ".json", error);
  }
}

}  // namespace gatehouse
