#include "server/serving/calibration_store.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/names.h"

namespace gatehouse {
namespace {

constexpr std::string_view kCalibrationSuffix = ".safetensors";
// Holds the name of the calibration that was selected last.
constexpr std::string_view kActiveFile = "active";

bool Newer(const CalibrationStore::Entry& a, const CalibrationStore::Entry& b) {
  if (a.info.created != b.info.created) return a.info.created > b.info.created;
  return a.name > b.name;
}

// The description of the calibration called `name` at `path`, if it is one of this
// engine's model.
absl::StatusOr<CalibrationStore::Entry> ReadEntry(Engine& engine, const std::string& name, const std::string& path) {
  GH_RETURN_IF_ERROR(CheckName("a calibration's name", name));
  GH_ASSIGN_OR_RETURN(CalibrationInfo info, engine.ReadCalibrationInfo(path));
  if (info.model_fingerprint != engine.info().fingerprint) {
    return absl::FailedPreconditionError("it is a calibration of another model");
  }
  if (info.name != name) {
    return absl::InvalidArgumentError(StrCat("calibration.name ", info.name.empty() ? "is missing" : "is another",
                                             ", must be ", name,
                                             ", as the file is called: rename the file, or write it anew"));
  }
  return CalibrationStore::Entry{.name = name, .path = path, .info = std::move(info)};
}

}  // namespace

struct CalibrationStore::State {
  State(Engine& engine, std::string model_name, std::string state_folder)
      : engine(engine), model_name(std::move(model_name)), state_folder(std::move(state_folder)) {}

  Engine& engine;
  const std::string model_name;
  const std::string state_folder;

  std::mutex load_mutex;  // held while tensors are read, so that nobody reads them twice; taken before `mutex`
  mutable std::mutex mutex;
  std::vector<Entry> entries;                                                   // newest first
  std::string active;                                                           // empty where there is none
  std::shared_ptr<const Calibration> active_calibration;                        // once loaded
  std::map<std::string, std::weak_ptr<const Calibration>, std::less<>> loaded;  // those in use

  void Scan(const std::string& folder);
  void ReadActive();
  absl::Status WriteActive(const std::string& name) const;
  // The next three with `mutex` held.
  const Entry* Find(std::string_view name) const;
  absl::StatusOr<Entry> Known(std::string_view name) const;
  void Insert(Entry entry);
  // The calibration of `entry`, from memory or its file.
  absl::StatusOr<std::shared_ptr<const Calibration>> Load(const Entry& entry);
};

void CalibrationStore::State::Scan(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    if (file->path().extension() != kCalibrationSuffix) continue;
    const std::string name = file->path().stem();
    const std::string path = file->path();
    absl::StatusOr<Entry> entry = ReadEntry(engine, name, path);
    if (!entry.ok()) {
      LogWarning(StrCat("model ", model_name, ": left out ", path, ": ", Message(entry.status())));
    } else if (Find(name) != nullptr) {
      LogWarning(StrCat("model ", model_name, ": left out ", path, ": there is another calibration named ", name));
    } else {
      Insert(*std::move(entry));
    }
  }
}

void CalibrationStore::State::ReadActive() {
  if (entries.empty()) return;
  active = entries.front().name;
  if (state_folder.empty()) return;
  const auto text = ReadFile(StrCat(state_folder, "/", kActiveFile), 1024);
  if (!text.ok()) return;
  const std::string name(absl::StripAsciiWhitespace(*text));
  if (Find(name) != nullptr) {
    active = name;
  } else {
    LogWarning(StrCat("model ", model_name, ": the calibration selected last is gone; using ", active));
  }
}

absl::Status CalibrationStore::State::WriteActive(const std::string& name) const {
  if (state_folder.empty()) return absl::OkStatus();
  GH_RETURN_IF_ERROR(MakeDirectories(state_folder));
  return WriteFileAtomically(StrCat(state_folder, "/", kActiveFile), StrCat(name, "\n"));
}

const CalibrationStore::Entry* CalibrationStore::State::Find(std::string_view name) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

absl::StatusOr<CalibrationStore::Entry> CalibrationStore::State::Known(std::string_view name) const {
  if (entries.empty()) {
    return WithReason(absl::FailedPreconditionError(StrCat("model ", model_name,
                                                           " is not calibrated: run `gatehouse calibrate --model ",
                                                           model_name, " --corpus FILE`")),
                      reason::kNotCalibrated);
  }
  if (const Entry* entry = Find(name.empty() ? active : name)) return *entry;
  std::string names;
  for (const Entry& entry : entries) names += StrCat(names.empty() ? "" : ", ", entry.name);
  return WithReason(absl::NotFoundError(StrCat("model ", model_name, " has no such calibration; it has: ", names)),
                    reason::kCalibrationNotFound);
}

void CalibrationStore::State::Insert(Entry entry) {
  entries.insert(std::upper_bound(entries.begin(), entries.end(), entry, Newer), std::move(entry));
}

absl::StatusOr<std::shared_ptr<const Calibration>> CalibrationStore::State::Load(const Entry& entry) {
  const auto from_memory = [&]() -> std::shared_ptr<const Calibration> {
    const std::lock_guard lock(mutex);
    const auto found = loaded.find(entry.name);
    return found == loaded.end() ? nullptr : found->second.lock();
  };
  if (auto calibration = from_memory()) return calibration;
  const std::lock_guard load_lock(load_mutex);
  if (auto calibration = from_memory()) return calibration;
  GH_ASSIGN_OR_RETURN(std::shared_ptr<const Calibration> calibration, engine.LoadCalibration(entry.path));
  const std::lock_guard lock(mutex);
  loaded[entry.name] = calibration;
  if (entry.name == active) active_calibration = calibration;
  return calibration;
}

absl::StatusOr<std::unique_ptr<CalibrationStore>> CalibrationStore::Create(Engine& engine, std::string model_name,
                                                                           std::vector<std::string> folders,
                                                                           std::string state_folder) {
  auto state = std::make_unique<State>(engine, std::move(model_name), std::move(state_folder));
  state->Scan(state->state_folder);
  for (const std::string& folder : folders) state->Scan(folder);
  state->ReadActive();
  return std::unique_ptr<CalibrationStore>(new CalibrationStore(std::move(state)));
}

CalibrationStore::CalibrationStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
CalibrationStore::~CalibrationStore() = default;

std::vector<CalibrationStore::Entry> CalibrationStore::List() const {
  const std::lock_guard lock(state_->mutex);
  return state_->entries;
}

std::string CalibrationStore::ActiveName() const {
  const std::lock_guard lock(state_->mutex);
  return state_->active;
}

std::shared_ptr<const Calibration> CalibrationStore::Active() const {
  std::optional<Entry> entry;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->active_calibration != nullptr) return state_->active_calibration;
    const Entry* active = state_->Find(state_->active);
    if (active == nullptr) return nullptr;
    entry = *active;
  }
  auto calibration = state_->Load(*entry);
  if (calibration.ok()) return *std::move(calibration);
  LogWarning(StrCat("model ", state_->model_name, ": calibration ", entry->name, ": ", Message(calibration.status())));
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const Calibration>> CalibrationStore::Get(std::string_view name) {
  absl::StatusOr<Entry> entry;
  {
    const std::lock_guard lock(state_->mutex);
    entry = state_->Known(name);
  }
  if (!entry.ok()) return entry.status();
  return state_->Load(*entry);
}

absl::StatusOr<CalibrationStore::Entry> CalibrationStore::Select(std::string_view name) {
  absl::StatusOr<Entry> entry;
  {
    const std::lock_guard lock(state_->mutex);
    entry = state_->Known(name);
  }
  if (!entry.ok()) return entry;
  GH_ASSIGN_OR_RETURN(std::shared_ptr<const Calibration> calibration, state_->Load(*entry));
  const std::lock_guard lock(state_->mutex);
  GH_RETURN_IF_ERROR(state_->WriteActive(entry->name));
  state_->active = entry->name;
  state_->active_calibration = std::move(calibration);
  return entry;
}

absl::StatusOr<std::string> CalibrationStore::PathFor(std::string_view name) const {
  GH_RETURN_IF_ERROR(CheckName("a calibration's name", name));
  if (state_->state_folder.empty()) {
    return absl::FailedPreconditionError("there is no state directory to write a calibration to");
  }
  const std::string path = StrCat(state_->state_folder, "/", name, kCalibrationSuffix);
  const std::lock_guard lock(state_->mutex);
  if (state_->Find(name) != nullptr || std::filesystem::exists(path)) {
    return absl::AlreadyExistsError(StrCat("model ", state_->model_name, " has a calibration named ", name));
  }
  GH_RETURN_IF_ERROR(MakeDirectories(state_->state_folder));
  return path;
}

absl::Status CalibrationStore::Adopt(std::string_view name, bool activate) {
  const std::string path = StrCat(state_->state_folder, "/", name, kCalibrationSuffix);
  GH_ASSIGN_OR_RETURN(Entry entry, ReadEntry(state_->engine, std::string(name), path));
  std::shared_ptr<const Calibration> calibration;
  if (activate) {
    GH_ASSIGN_OR_RETURN(calibration, state_->Load(entry));
  }
  // From here on nothing is changed unless all succeeds.
  const std::lock_guard lock(state_->mutex);
  if (state_->Find(name) != nullptr) {
    return absl::AlreadyExistsError(StrCat("model ", state_->model_name, " has a calibration named ", name));
  }
  // Also where the active one stays: else the newest would take its place at the next start.
  const std::string active = activate ? std::string(name) : state_->active;
  if (!active.empty()) GH_RETURN_IF_ERROR(state_->WriteActive(active));
  state_->Insert(std::move(entry));
  if (activate || state_->active.empty()) {
    state_->active = std::string(name);
    state_->active_calibration = std::move(calibration);
  }
  return absl::OkStatus();
}

}  // namespace gatehouse
