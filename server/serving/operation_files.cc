#include "server/serving/operation_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/names.h"

namespace gatehouse {
namespace {

constexpr std::string_view kPrefix = "operations/";
constexpr std::string_view kRecordSuffix = ".json";

constexpr std::array<std::pair<OperationState, std::string_view>, 6> kStates = {{
    {OperationState::kWaiting, "waiting"},
    {OperationState::kRunning, "running"},
    {OperationState::kSucceeded, "succeeded"},
    {OperationState::kFailed, "failed"},
    {OperationState::kCancelled, "cancelled"},
    {OperationState::kInterrupted, "interrupted"},
}};

// Newest first: ids begin with the time.
bool Newer(const OperationName& a, const OperationName& b) {
  return a.id != b.id ? a.id > b.id : a.replica > b.replica;
}

std::string ToJson(const OperationStatus& operation) {
  nlohmann::json json = {
      {"kind", operation.kind},         {"model", operation.model},
      {"progress", operation.progress}, {"stage", operation.stage},
      {"created", operation.created},   {"ended", operation.ended},
      {"result", operation.result},     {"result_bytes", operation.result_bytes},
      {"files", operation.files},
  };
  json["state"] = NameOf(operation.state);
  if (!operation.error.ok()) {
    json["error_code"] = static_cast<int>(operation.error.code());
    json["error_message"] = Message(operation.error);
    json["error_reason"] = ReasonOf(operation.error);
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<OperationStatus> FromJson(const std::string& text) {
  const absl::Status damaged = absl::InvalidArgumentError("the operation's file is damaged");
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged;
  bool good = true;
  const auto read = [&]<typename T>(const char* key, T& value) {
    const auto found = json.find(key);
    if (found == json.end()) return;
    if constexpr (std::is_same_v<T, std::string>) {
      good = good && found->is_string();
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      good = good && found->is_array() &&
             std::all_of(found->begin(), found->end(), [](const auto& entry) { return entry.is_string(); });
    } else {
      good = good && found->is_number();
    }
    if (good) value = found->template get<T>();
  };
  OperationStatus operation;
  std::string state, error_message, error_reason;
  int error_code = 0;
  read("kind", operation.kind);
  read("model", operation.model);
  read("state", state);
  read("progress", operation.progress);
  read("stage", operation.stage);
  read("created", operation.created);
  read("ended", operation.ended);
  read("result", operation.result);
  read("result_bytes", operation.result_bytes);
  read("files", operation.files);
  read("error_code", error_code);
  read("error_message", error_message);
  read("error_reason", error_reason);
  bool known = false;
  for (const auto& [value, name] : kStates) {
    if (name != state) continue;
    operation.state = value;
    known = true;
  }
  if (!good || !known) return damaged;
  if (error_code != 0) {
    operation.error = WithReason(absl::Status(static_cast<absl::StatusCode>(error_code), error_message), error_reason);
  }
  return operation;
}

}  // namespace

absl::StatusOr<OperationName> OperationName::Parse(std::string_view name) {
  const auto slash = name.find('/', kPrefix.size());
  if (name.starts_with(kPrefix) && slash != std::string_view::npos) {
    OperationName parts{.replica = std::string(name.substr(kPrefix.size(), slash - kPrefix.size())),
                        .id = std::string(name.substr(slash + 1))};
    if (CheckName("", parts.replica).ok() && CheckName("", parts.id).ok()) return parts;
  }
  return absl::InvalidArgumentError("an operation is named \"operations/REPLICA/ID\"");
}

absl::StatusOr<OperationName> OperationName::ParseRequested(std::string_view name) {
  absl::StatusOr<OperationName> parsed = Parse(name);
  if (!parsed.ok()) return NoSuchOperation("no such operation; they are named \"operations/REPLICA/ID\"");
  return parsed;
}

std::string OperationName::ToString() const { return StrCat(kPrefix, replica, "/", id); }

absl::Status NoSuchOperation(std::string_view why) {
  return WithReason(absl::NotFoundError(ToAbsl(why)), reason::kOperationNotFound);
}

std::string OperationIds::Next() {
  last_ms_ = std::max(last_ms_ + 1, absl::ToUnixMillis(absl::Now()));
  return absl::FormatTime("%Y%m%dT%H%M%E3S", absl::FromUnixMillis(last_ms_), absl::UTCTimeZone());
}

std::string_view NameOf(OperationState state) {
  for (const auto& [value, name] : kStates) {
    if (value == state) return name;
  }
  return "";
}

OperationFiles::~OperationFiles() {
  if (lock_ >= 0) close(lock_);
}

absl::Status OperationFiles::Hold(const std::string& replica) {
  const std::string folder = StrCat(folder_, "/", replica);
  GH_RETURN_IF_ERROR(MakeDirectories(folder));
  const std::string path = StrCat(folder, "/lock");
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) {
    return absl::PermissionDeniedError(
        StrCat("cannot write to the state directory: ", path, ": ", std::strerror(errno)));
  }
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        StrCat("another server runs as replica ", replica, " on this state directory"));
  }
  return absl::OkStatus();
}

std::string OperationFiles::PathOf(const OperationName& name) const {
  return StrCat(folder_, "/", name.replica, "/", name.id, kRecordSuffix);
}

absl::Status OperationFiles::Write(const OperationStatus& operation) const {
  GH_ASSIGN_OR_RETURN(const OperationName name, OperationName::Parse(operation.name));
  const absl::Status status = WriteFileAtomically(PathOf(name), ToJson(operation));
  return absl::IsResourceExhausted(status) ? WithReason(status, reason::kDiskFull) : status;
}

void OperationFiles::Remove(const OperationName& name) const {
  std::error_code error;  // of one that another replica has removed
  std::filesystem::remove(PathOf(name), error);
}

absl::StatusOr<OperationStatus> OperationFiles::Read(const OperationName& name) const {
  const absl::StatusOr<std::string> text = ReadFile(PathOf(name), 1 << 20);
  if (absl::IsNotFound(text.status())) {
    return NoSuchOperation(StrCat("there is no ", name.ToString()));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<OperationStatus> operation = FromJson(*text);
  if (!operation.ok()) return Annotate(operation.status(), name.ToString());
  operation->name = name.ToString();
  return operation;
}

std::vector<OperationName> OperationFiles::List() const {
  std::vector<OperationName> names;
  std::error_code error;
  for (std::filesystem::directory_iterator folder(folder_, error), end; !error && folder != end;
       folder.increment(error)) {
    const std::string replica = folder->path().filename();
    if (!CheckName("", replica).ok()) continue;
    std::error_code inner;
    for (std::filesystem::directory_iterator file(folder->path(), inner), last; !inner && file != last;
         file.increment(inner)) {
      const std::string id = file->path().stem();
      if (file->path().extension() == kRecordSuffix && CheckName("", id).ok()) names.push_back({replica, id});
    }
  }
  std::sort(names.begin(), names.end(), Newer);
  return names;
}

absl::StatusOr<std::vector<OperationName>> OperationFiles::ListAfter(const std::string& last) const {
  std::vector<OperationName> names = List();
  if (last.empty()) return names;
  const absl::StatusOr<OperationName> name = OperationName::Parse(last);
  if (!name.ok()) return absl::InvalidArgumentError("page_token is not one that a list returned");
  names.erase(names.begin(), std::upper_bound(names.begin(), names.end(), *name, Newer));
  return names;
}

}  // namespace gatehouse
