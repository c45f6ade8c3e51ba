#include "server/serving/operation_results.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_join.h"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/names.h"
#include "server/serving/report_json.h"

namespace gatehouse {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxReportBytes = int64_t{1} << 30;
constexpr size_t kMaxFilesNamed = 8;
// In the names of files that WriteFileAtomically has not finished.
constexpr std::string_view kTemporaryMark = ".tmp-";

absl::Status NoResult(absl::Status status) { return WithReason(std::move(status), reason::kNoResult); }

std::string CalibrationFile(const OperationStatus& status) { return StrCat(status.result, ".safetensors"); }

// A path below a folder, without a step out of it.
bool IsInside(const std::string& file) {
  const fs::path path(file);
  return !path.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".." || part.empty(); });
}

}  // namespace

std::string OperationResults::FolderOf(const OperationName& name) const {
  return StrCat(state_dir_, "/results/", name.replica, "/", name.id);
}

std::vector<std::string> OperationResults::Files(const OperationStatus& status) const {
  if (status.kind == kCalibrateKind) {
    if (status.state != OperationState::kSucceeded) return {};
    return {CalibrationFile(status)};
  }
  const absl::StatusOr<OperationName> name = OperationName::Parse(status.name);
  if (!name.ok()) return {};
  const fs::path folder(FolderOf(*name));
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    std::error_code unknown;
    if (file->symlink_status(unknown).type() != fs::file_type::regular) continue;
    if (file->path().filename().string().find(kTemporaryMark) != std::string::npos) continue;
    files.push_back(file->path().lexically_relative(folder).generic_string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::string> OperationResults::PathOf(const OperationStatus& status, const std::string& file) const {
  if (!status.done()) return NoResult(absl::FailedPreconditionError("the operation has not ended yet"));
  if (file.empty() ? status.state != OperationState::kSucceeded : status.files.empty()) {
    return NoResult(absl::FailedPreconditionError("the operation ended without a result"));
  }
  GH_ASSIGN_OR_RETURN(const OperationName name, OperationName::Parse(status.name));
  const bool calibration = status.kind == kCalibrateKind;
  const std::string wanted = !file.empty() ? file : calibration ? CalibrationFile(status) : status.result;
  if (std::find(status.files.begin(), status.files.end(), wanted) == status.files.end() || !IsInside(wanted)) {
    return NoResult(absl::NotFoundError(
        StrCat("the operation left no file of that name",
               status.files.size() <= kMaxFilesNamed ? StrCat("; it left ", absl::StrJoin(status.files, ", ")) : "")));
  }
  std::string folder = FolderOf(name);
  if (calibration) {
    GH_RETURN_IF_ERROR(CheckName("the operation's model", status.model));
    folder = StrCat(state_dir_, "/calibrations/", status.model);
  }
  std::string path = StrCat(folder, "/", wanted);
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return NoResult(absl::NotFoundError("that file of the operation has been deleted"));
  }
  return path;
}

absl::StatusOr<Report> OperationResults::ReadReport(const OperationStatus& status) const {
  if (status.done() && std::find(status.files.begin(), status.files.end(), kReportFile) == status.files.end()) {
    return NoResult(absl::FailedPreconditionError(status.kind == kCalibrateKind
                                                      ? "a calibration has no report: describe the model"
                                                      : "the operation ended without a report"));
  }
  GH_ASSIGN_OR_RETURN(const std::string path, PathOf(status, std::string(kReportFile)));
  GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxReportBytes));
  const absl::StatusOr<Report> report = ReportFromJson(text);
  if (!report.ok()) return absl::DataLossError(StrCat("the report is damaged: ", Message(report.status())));
  return report;
}

void OperationResults::Remove(const OperationName& name) const {
  std::error_code error;
  fs::remove_all(FolderOf(name), error);
  if (error) LogWarning(StrCat("cannot remove the files of ", name.ToString(), ": ", error.message()));
}

void OperationResults::RemoveAllBut(const std::vector<OperationName>& known, const std::string& replica) const {
  std::vector<OperationName> unknown;
  std::error_code error;
  for (fs::directory_iterator folder(StrCat(state_dir_, "/results/", replica), error), end; !error && folder != end;
       folder.increment(error)) {
    const OperationName name{replica, folder->path().filename()};
    const auto same = [&](const OperationName& other) { return other.replica == replica && other.id == name.id; };
    if (CheckName("", name.id).ok() && std::none_of(known.begin(), known.end(), same)) unknown.push_back(name);
  }
  for (const OperationName& name : unknown) Remove(name);
}

}  // namespace gatehouse
