#include "client/cli/operation_run.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>

#include "absl/time/clock.h"
#include "client/cli/progress.h"

namespace gatehouse::cli {
namespace {

// Whether there is something at `path` that a file must not take the place of: a link, a
// device, a pipe, a folder.
bool MustStay(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::FailedPreconditionError("cannot write " + path + ": " + std::strerror(error));
}

std::string PartialOf(const std::string& path) { return path + ".part"; }

absl::Status WriteStraight(const std::string& path, const std::function<absl::Status(std::ostream&)>& write) {
  std::ofstream file(path, std::ios::binary);
  if (!file) return CannotWrite(path, errno);
  const absl::Status status = write(file);
  file.close();
  return status.ok() && !file ? absl::DataLossError("cannot write " + path) : status;
}

// Lets `write` fill a file beside `path`, then gives it that name; what must stay is written
// straight.
absl::Status WriteBeside(const std::string& path, const std::function<absl::Status(std::ostream&)>& write) {
  if (MustStay(path)) return WriteStraight(path, write);
  const std::string partial = PartialOf(path);
  absl::Status status = WriteStraight(partial, write);
  std::error_code error;
  if (status.ok()) std::filesystem::rename(partial, path, error);
  if (error) status = absl::FailedPreconditionError("cannot write " + path + ": " + error.message());
  if (!status.ok()) std::filesystem::remove(partial, error);
  return status;
}

}  // namespace

absl::StatusOr<v1::UploadCorpusResponse> UploadFile(Session& session, const std::string& path, std::istream& in) {
  std::ifstream file;
  std::error_code size_unknown;
  uintmax_t size = 0;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file || std::filesystem::is_directory(path)) {
      return absl::InvalidArgumentError("cannot read " + path + ": " +
                                        (file ? "it is a directory" : std::strerror(errno)));
    }
    size = std::filesystem::file_size(path, size_unknown);
  }
  const std::string label = path == "-" ? "standard input" : std::filesystem::path(path).filename().string();
  ProgressBar progress(session.terminal);
  auto uploaded = session.client.UploadCorpus(
      path == "-" ? in : file, label,
      [&](uint64_t sent) {
        const double share = size > 0 ? static_cast<double>(sent) / static_cast<double>(size) : 0;
        if (session.terminal.err_is_terminal) progress.Update(share, "uploading " + label, absl::Now());
        return true;
      },
      session.call);
  if (uploaded.ok() && !uploaded->replica().empty()) session.call.replica = uploaded->replica();
  return uploaded;
}

absl::StatusOr<Watched> WatchToEnd(Session& session, const std::string& name) {
  std::atomic<bool> asked = false;
  client::Canceller canceller;
  session.interrupts.OnInterrupt([&] {
    asked = true;
    canceller.Cancel();
  });
  ProgressBar progress(session.terminal);
  const auto show = [&](const v1::Operation& state) {
    if (!client::IsDone(state)) progress.Update(state.progress(), state.stage(), absl::Now());
    return true;
  };
  auto last = session.client.WatchOperation(name, show, {.timeout = session.call.timeout, .canceller = &canceller});
  session.interrupts.OnInterrupt({});
  if (asked && !last.ok()) {
    progress.Clear();
    session.terminal.err << "Asking the server to cancel the operation; Ctrl-C again leaves without waiting.\n";
    if (auto cancelled = session.client.CancelOperation(name); !cancelled.ok()) return cancelled.status();
    last = session.client.WatchOperation(name, {});
  }
  if (!last.ok()) return last.status();
  return Watched{*std::move(last), asked};
}

void PrintDetached(Session& session, const std::string& name) {
  session.terminal.out << name << "\n";
  session.terminal.err << "It goes on at the server: gatehouse operations watch " << name << "\n";
}

void PrintFailure(Session& session, const v1::Operation& operation, const std::string& what) {
  session.terminal.err << "gatehouse: " << what << " " << OperationStateName(operation.state())
                       << (operation.error_message().empty() ? "" : ": " + OneLine(operation.error_message())) << "\n";
}

absl::Status CheckWritable(const std::string& path) {
  if (MustStay(path)) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) return CannotWrite(path, EISDIR);
    // A link may lead to a file that does not exist yet.
    return access(path.c_str(), W_OK) == 0 || errno == ENOENT ? absl::OkStatus() : CannotWrite(path, errno);
  }
  const std::string partial = PartialOf(path);
  std::error_code error;
  const bool was_there = std::filesystem::exists(partial, error);
  const std::ofstream file(partial, std::ios::binary | std::ios::app);
  if (!file) return CannotWrite(path, errno);
  if (!was_there) std::filesystem::remove(partial, error);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FetchToFile(Session& session, const std::string& name, const std::string& file,
                                     const std::string& path) {
  uint64_t bytes = 0;
  const absl::Status status = WriteBeside(path, [&](std::ostream& out) {
    const auto size = session.client.FetchResult(name, file, out, session.call);
    bytes = size.value_or(0);
    return size.status();
  });
  if (!status.ok()) return status;
  return bytes;
}

absl::Status WriteToFile(const std::string& path, const std::string& text) {
  return WriteBeside(path, [&](std::ostream& out) {
    out << text;
    return absl::OkStatus();
  });
}

}  // namespace gatehouse::cli
