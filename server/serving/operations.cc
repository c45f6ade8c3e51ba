#include "server/serving/operations.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/error_reason.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/calibrate_operation.h"
#include "server/serving/corpora.h"
#include "server/serving/names.h"
#include "server/serving/operation_files.h"
#include "server/serving/operation_watchers.h"

namespace gatehouse {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;
constexpr double kSecondsBetweenWrites = 1;
// Least progress that is told to watchers.
constexpr double kProgressStep = 0.001;

// One operation of this replica.
struct Job {
  OperationStatus status;  // guarded by the manager's mutex
  CalibrateSpec spec;
  std::string corpus_path;
  const ServedModel* model = nullptr;
  std::atomic<bool> cancelled{false};
  double written_at = 0;  // MonotonicSeconds; guarded by the manager's mutex
};

absl::Status NoSuchOperation(std::string_view why) {
  return WithReason(absl::NotFoundError(why.data()), reason::kOperationNotFound);
}

absl::Status OtherReplica(const OperationName& name) {
  return WithReason(absl::FailedPreconditionError(StrCat("replica ", name.replica, " runs it: ask there")),
                    reason::kOtherReplica);
}

absl::StatusOr<OperationName> ParseName(const std::string& name) {
  absl::StatusOr<OperationName> parsed = OperationName::Parse(name);
  if (!parsed.ok()) return NoSuchOperation("no such operation; they are named \"operations/REPLICA/ID\"");
  return parsed;
}

// Newest first: ids begin with the time.
bool Newer(const OperationName& a, const OperationName& b) {
  return a.id != b.id ? a.id > b.id : a.replica > b.replica;
}

class OperationManagerImpl final : public OperationManager {
 public:
  OperationManagerImpl(const ModelCatalog& catalog, OperationsOptions options)
      : catalog_(catalog), options_(std::move(options)), files_(StrCat(options_.state_dir, "/operations")) {}

  ~OperationManagerImpl() override { Shutdown(); }

  absl::Status Open();

  absl::StatusOr<std::unique_ptr<CorpusUpload>> BeginUpload(std::string display_name) override {
    return corpora_->BeginUpload(display_name);
  }
  absl::StatusOr<OperationStatus> Start(const std::string& model, OperationSpec spec) override;
  absl::StatusOr<OperationStatus> Get(const std::string& name) const override;
  absl::StatusOr<OperationStatus> Cancel(const std::string& name) override;
  absl::StatusOr<Page> List(int page_size, const std::string& page_token) const override;
  absl::StatusOr<std::string> ResultPath(const std::string& name) const override;
  absl::StatusOr<uint64_t> Watch(const std::string& name, Changed changed) override;
  void Unwatch(uint64_t watch) override { watchers_.Remove(watch); }
  void Shutdown() override;

 private:
  bool Ours(const OperationName& name) const { return name.replica == options_.replica; }
  // The state of an operation of any replica.
  absl::StatusOr<OperationStatus> Read(const OperationName& name) const;
  absl::StatusOr<std::shared_ptr<Job>> MakeJob(const std::string& model, CalibrateSpec spec) const;
  // With mutex_ held.
  absl::Status CheckQueue(const Job& job) const;
  std::string NextIdLocked();

  void Work();
  std::shared_ptr<Job> NextJob();
  void Run(Job& job);
  void OnProgress(Job& job, double fraction, std::string_view stage);
  // Ends the operation in memory and on disk, with mutex_ held.
  void EndLocked(Job& job, OperationState state, const absl::Status& error = absl::OkStatus());
  void WriteLocked(Job& job);
  // Tells the watchers of an operation of this replica.
  void Tell(const std::string& name);

  const ModelCatalog& catalog_;
  const OperationsOptions options_;
  OperationFiles files_;
  std::unique_ptr<CorpusStore> corpora_;
  OperationWatchers watchers_;  // never called with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;  // by name; guarded by mutex_, as all below
  std::deque<std::shared_ptr<Job>> waiting_;
  std::shared_ptr<Job> running_;
  int64_t last_id_ms_ = 0;
  bool stopping_ = false;

  std::mutex join_mutex_;
  std::thread worker_;
};

absl::Status OperationManagerImpl::Open() {
  if (options_.state_dir.empty()) return absl::InvalidArgumentError("operations need a state directory");
  GH_RETURN_IF_ERROR(CheckName("a replica's name", options_.replica));
  GH_RETURN_IF_ERROR(files_.Hold(options_.replica));
  GH_ASSIGN_OR_RETURN(corpora_, CorpusStore::Create(StrCat(options_.state_dir, "/corpora"), options_.replica,
                                                    options_.corpus_limit_bytes));
  for (const OperationName& name : files_.List()) {
    if (!Ours(name)) continue;
    absl::StatusOr<OperationStatus> status = files_.Read(name);
    if (!status.ok()) {
      LogWarning(StrCat("left out an operation: ", Message(status.status())));
      continue;
    }
    auto job = std::make_shared<Job>();
    job->status = *std::move(status);
    if (!job->status.done()) EndLocked(*job, OperationState::kInterrupted);
    jobs_.emplace(job->status.name, std::move(job));
  }
  worker_ = std::thread([this] { Work(); });
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Job>> OperationManagerImpl::MakeJob(const std::string& model, CalibrateSpec spec) const {
  auto job = std::make_shared<Job>();
  GH_ASSIGN_OR_RETURN(job->model, catalog_.Find(model));
  GH_RETURN_IF_ERROR(CheckCalibrateOptions(spec.options, job->model->engine->info()));
  if (!spec.options.name.empty()) {
    GH_RETURN_IF_ERROR(job->model->calibrations->PathFor(spec.options.name).status());
  }
  GH_ASSIGN_OR_RETURN(const CorpusStore::Found corpus, corpora_->Find(spec.corpus));
  job->corpus_path = corpus.path;
  if (spec.options.corpus.empty()) spec.options.corpus = corpus.label;
  spec.options.corpus_sha256 = corpus.sha256;
  job->spec = std::move(spec);
  job->status.kind = "calibrate";
  job->status.model = model;
  return job;
}

absl::Status OperationManagerImpl::CheckQueue(const Job& job) const {
  if (stopping_) return WithReason(absl::UnavailableError("the server is shutting down"), reason::kDraining);
  if (static_cast<int>(waiting_.size()) >= options_.max_waiting) {
    return WithReason(absl::ResourceExhaustedError(StrCat(waiting_.size(), " operations are waiting already")),
                      reason::kTooManyOperations);
  }
  for (const auto& [name, other] : jobs_) {
    if (!other->status.done() && other->model == job.model && !job.spec.options.name.empty() &&
        other->spec.options.name == job.spec.options.name) {
      return absl::AlreadyExistsError(StrCat(name, " is making a calibration named ", job.spec.options.name));
    }
  }
  return absl::OkStatus();
}

// The time in milliseconds, or a little later, so that ids differ and grow.
std::string OperationManagerImpl::NextIdLocked() {
  last_id_ms_ = std::max(last_id_ms_ + 1, absl::ToUnixMillis(absl::Now()));
  while (true) {
    const std::string id = absl::FormatTime("%Y%m%dT%H%M%E3S", absl::FromUnixMillis(last_id_ms_), absl::UTCTimeZone());
    if (!jobs_.contains(OperationName{options_.replica, id}.ToString())) return id;
    ++last_id_ms_;
  }
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Start(const std::string& model, OperationSpec spec) {
  GH_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, MakeJob(model, std::get<CalibrateSpec>(std::move(spec))));
  const std::lock_guard lock(mutex_);
  GH_RETURN_IF_ERROR(CheckQueue(*job));
  const std::string id = NextIdLocked();
  if (job->spec.options.name.empty()) job->spec.options.name = id;
  job->status.name = OperationName{options_.replica, id}.ToString();
  job->status.created = Rfc3339Now();
  job->status.stage = "waiting";
  GH_RETURN_IF_ERROR(files_.Write(job->status));
  jobs_.emplace(job->status.name, job);
  waiting_.push_back(job);
  changed_.notify_all();
  return job->status;
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Read(const OperationName& name) const {
  if (!Ours(name)) return files_.Read(name);
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(name.ToString());
  if (found == jobs_.end()) return NoSuchOperation("there is no such operation");
  return found->second->status;
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Get(const std::string& name) const {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, ParseName(name));
  return Read(parsed);
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Cancel(const std::string& name) {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, ParseName(name));
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Read(parsed));
  if (status.done()) return status;
  if (!Ours(parsed)) return OtherReplica(parsed);
  {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Job> job = jobs_.at(name);
    job->cancelled.store(true);
    if (std::erase(waiting_, job) > 0) EndLocked(*job, OperationState::kCancelled);
  }
  Tell(name);
  return Read(parsed);
}

absl::StatusOr<OperationManager::Page> OperationManagerImpl::List(int page_size, const std::string& page_token) const {
  if (!(page_size >= 0 && page_size <= kMaxPageSize)) {
    return absl::InvalidArgumentError(StrCat("page_size is ", page_size, ", must be in [0, ", kMaxPageSize, "]"));
  }
  const size_t limit = page_size == 0 ? kDefaultPageSize : page_size;
  std::vector<OperationName> names = files_.List();
  std::sort(names.begin(), names.end(), Newer);
  auto next = names.begin();
  if (!page_token.empty()) {
    const absl::StatusOr<OperationName> last = OperationName::Parse(page_token);
    if (!last.ok()) return absl::InvalidArgumentError("page_token is not one that a list returned");
    next = std::upper_bound(names.begin(), names.end(), *last, Newer);
  }
  Page page;
  for (; next != names.end() && page.operations.size() < limit; ++next) {
    absl::StatusOr<OperationStatus> status = Read(*next);
    if (status.ok()) page.operations.push_back(*std::move(status));
  }
  if (next != names.end()) page.next_page_token = std::prev(next)->ToString();
  return page;
}

absl::StatusOr<std::string> OperationManagerImpl::ResultPath(const std::string& name) const {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, ParseName(name));
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Read(parsed));
  if (status.state != OperationState::kSucceeded) {
    return WithReason(absl::FailedPreconditionError(status.done() ? "the operation ended without a result"
                                                                  : "the operation has not ended yet"),
                      reason::kNoResult);
  }
  GH_RETURN_IF_ERROR(CheckName("the operation's model", status.model));
  GH_RETURN_IF_ERROR(CheckName("the operation's result", status.result));
  const std::string path =
      StrCat(options_.state_dir, "/calibrations/", status.model, "/", status.result, ".safetensors");
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return WithReason(absl::NotFoundError("the operation's result has been deleted"), reason::kNoResult);
  }
  return path;
}

absl::StatusOr<uint64_t> OperationManagerImpl::Watch(const std::string& name, Changed changed) {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, ParseName(name));
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Read(parsed));
  if (!status.done() && !Ours(parsed)) return OtherReplica(parsed);
  return watchers_.Add(name, std::move(changed), [&] {
    const absl::StatusOr<OperationStatus> now = Read(parsed);
    return now.ok() ? *now : status;
  });
}

void OperationManagerImpl::Tell(const std::string& name) {
  watchers_.Tell(name, [&] {
    const std::lock_guard lock(mutex_);
    return jobs_.at(name)->status;
  });
}

void OperationManagerImpl::Work() {
  while (const std::shared_ptr<Job> job = NextJob()) Run(*job);
}

// Waits for one; null when the manager stops.
std::shared_ptr<Job> OperationManagerImpl::NextJob() {
  std::unique_lock lock(mutex_);
  running_ = nullptr;
  changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (stopping_) return nullptr;
  running_ = waiting_.front();
  waiting_.pop_front();
  running_->status.state = OperationState::kRunning;
  running_->status.stage = "starting";
  WriteLocked(*running_);
  return running_;
}

void OperationManagerImpl::Run(Job& job) {
  Tell(job.status.name);
  const absl::StatusOr<uint64_t> bytes = RunCalibration(
      *job.model, job.corpus_path, job.spec.options, job.spec.activate,
      [&](double fraction, std::string_view stage) { OnProgress(job, fraction, stage); }, job.cancelled);
  {
    const std::lock_guard lock(mutex_);
    if (bytes.ok()) {
      job.status.progress = 1;
      job.status.result = job.spec.options.name;
      job.status.result_bytes = *bytes;
      EndLocked(job, OperationState::kSucceeded);
    } else if (!job.cancelled.load() || !absl::IsCancelled(bytes.status())) {
      EndLocked(job, OperationState::kFailed, bytes.status());
    } else {
      EndLocked(job, stopping_ ? OperationState::kInterrupted : OperationState::kCancelled);
    }
  }
  Tell(job.status.name);
}

void OperationManagerImpl::OnProgress(Job& job, double fraction, std::string_view stage) {
  {
    const std::lock_guard lock(mutex_);
    OperationStatus& status = job.status;
    const double progress = fraction >= 0 && fraction <= 1 ? std::max(fraction, status.progress) : status.progress;
    if (progress < status.progress + kProgressStep && status.stage == stage) return;
    status.progress = progress;
    status.stage = std::string(stage);
    if (MonotonicSeconds() - job.written_at >= kSecondsBetweenWrites) WriteLocked(job);
  }
  Tell(job.status.name);
}

void OperationManagerImpl::EndLocked(Job& job, OperationState state, const absl::Status& error) {
  job.status.state = state;
  job.status.error = error;
  job.status.ended = Rfc3339Now();
  if (!error.ok()) LogWarning(StrCat(job.status.name, " failed: ", Message(error)));
  WriteLocked(job);
}

// The operation goes on where its state cannot be written: its result matters more.
void OperationManagerImpl::WriteLocked(Job& job) {
  job.written_at = MonotonicSeconds();
  const absl::Status status = files_.Write(job.status);
  if (!status.ok()) LogError(StrCat("cannot write the state of ", job.status.name, ": ", Message(status)));
}

void OperationManagerImpl::Shutdown() {
  std::vector<std::string> ended;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (running_ != nullptr) running_->cancelled.store(true);
    for (const std::shared_ptr<Job>& job : waiting_) {
      EndLocked(*job, OperationState::kInterrupted);
      ended.push_back(job->status.name);
    }
    waiting_.clear();
    changed_.notify_all();
  }
  for (const std::string& name : ended) Tell(name);
  const std::lock_guard lock(join_mutex_);
  if (worker_.joinable()) worker_.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OperationManager>> OperationManager::Create(const ModelCatalog& catalog,
                                                                           OperationsOptions options) {
  auto manager = std::make_unique<OperationManagerImpl>(catalog, std::move(options));
  GH_RETURN_IF_ERROR(manager->Open());
  return manager;
}

}  // namespace gatehouse
