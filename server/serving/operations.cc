#include "server/serving/operations.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "server/base/clock.h"
#include "server/base/error_reason.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/corpora.h"
#include "server/serving/names.h"
#include "server/serving/operation_files.h"
#include "server/serving/operation_results.h"
#include "server/serving/operation_watchers.h"
#include "server/serving/operation_work.h"

namespace gatehouse {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;
constexpr double kSecondsBetweenWrites = 1;
// Least progress that is told to watchers.
constexpr double kProgressStep = 0.001;

// One operation of this replica.
struct Job {
  OperationStatus status;               // guarded by the manager's mutex
  std::unique_ptr<OperationWork> work;  // null for one of before a restart
  std::atomic<bool> cancelled{false};
  double written_at = 0;  // MonotonicSeconds; guarded by the manager's mutex
};

// Every kind of operation, with every state at zero.
template <size_t... kMethod>
OperationLoad NoLoad(std::index_sequence<kMethod...>) {
  std::vector<ExperimentMethod> methods = {std::variant_alternative_t<kMethod, ExperimentMethod>{}...};
  TrainingMethod training;
  for (const TrainingSchedule schedule : {TrainingSchedule::kTwoPhase, TrainingSchedule::kRouting}) {
    training.schedule = schedule;
    methods.emplace_back(training);
  }
  OperationLoad load;
  load.counts[std::string(kCalibrateKind)];
  for (const ExperimentMethod& method : methods) load.counts[ExperimentKind(method)];
  for (auto& [kind, states] : load.counts) {
    for (int state = 0; state <= static_cast<int>(OperationState::kInterrupted); ++state) {
      states[static_cast<OperationState>(state)] = 0;
    }
  }
  return load;
}

absl::Status OtherReplica(const OperationName& name) {
  return WithReason(absl::FailedPreconditionError(StrCat("replica ", name.replica, " runs it: ask there")),
                    reason::kOtherReplica);
}

class OperationManagerImpl final : public OperationManager {
 public:
  OperationManagerImpl(const ModelCatalog& catalog, OperationsOptions options)
      : catalog_(catalog),
        options_(std::move(options)),
        files_(StrCat(options_.state_dir, "/operations")),
        results_(options_.state_dir) {}

  ~OperationManagerImpl() override { Shutdown(); }

  absl::Status Open();

  absl::StatusOr<std::unique_ptr<CorpusUpload>> BeginUpload(std::string display_name) override {
    Prune();
    return corpora_->BeginUpload(display_name);
  }
  absl::StatusOr<OperationStatus> Start(const std::string& model, OperationSpec spec) override;
  absl::StatusOr<OperationStatus> Get(const std::string& name) const override;
  absl::StatusOr<OperationStatus> Cancel(const std::string& name) override;
  OperationLoad Load() const override;
  absl::StatusOr<Page> List(int page_size, const std::string& page_token) const override;
  absl::StatusOr<std::string> ResultPath(const std::string& name, const std::string& file) const override;
  absl::StatusOr<Report> ReadReport(const std::string& name) const override;
  absl::StatusOr<uint64_t> Watch(const std::string& name, Changed changed) override;
  void Unwatch(uint64_t watch) override { watchers_.Remove(watch); }
  void Shutdown() override;

 private:
  bool Ours(const OperationName& name) const { return name.replica == options_.replica; }
  // The state of an operation of any replica.
  absl::StatusOr<OperationStatus> Read(const OperationName& name) const;
  absl::StatusOr<std::unique_ptr<OperationWork>> MakeWork(const std::string& model, OperationSpec spec) const;
  // With mutex_ held.
  absl::Status CheckQueue(const OperationWork& work) const;

  void Work();
  std::shared_ptr<Job> NextJob();
  void Run(const std::shared_ptr<Job>& job);
  void OnProgress(const std::shared_ptr<Job>& job, double fraction, std::string_view stage);
  // Ends the operation in memory and on disk, with mutex_ held.
  void EndLocked(Job& job, OperationState state, const absl::Status& error = absl::OkStatus());
  void WriteLocked(Job& job);
  // Tells the watchers.
  void Tell(const std::shared_ptr<Job>& job);
  // Removes what is beyond the options' bounds.
  void Prune();
  std::vector<OperationName> ForgetOldLocked(const std::set<std::string>& needed);

  const ModelCatalog& catalog_;
  const OperationsOptions options_;
  OperationFiles files_;
  const OperationResults results_;
  std::unique_ptr<CorpusStore> corpora_;
  OperationWatchers watchers_;  // never called with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;  // by name; guarded by mutex_, as all below
  std::deque<std::shared_ptr<Job>> waiting_;
  std::shared_ptr<Job> running_;
  OperationLoad ended_ = NoLoad(std::make_index_sequence<std::variant_size_v<ExperimentMethod>>());  // since the start
  OperationIds ids_;
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
  results_.RemoveAllBut(files_.List(), options_.replica);
  Prune();
  worker_ = std::thread([this] { Work(); });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OperationWork>> OperationManagerImpl::MakeWork(const std::string& model,
                                                                              OperationSpec spec) const {
  GH_ASSIGN_OR_RETURN(const ServedModel* const served, catalog_.Find(model));
  const auto find = [this](const std::string& name) -> absl::StatusOr<OperationStatus> {
    GH_ASSIGN_OR_RETURN(const OperationName parsed, OperationName::ParseRequested(name));
    if (!Ours(parsed)) return OtherReplica(parsed);
    return Read(parsed);
  };
  const WorkContext context{*served, *corpora_, results_, find};
  if (auto* const calibrate = std::get_if<CalibrateSpec>(&spec)) return MakeCalibration(context, std::move(*calibrate));
  return MakeExperiment(context, std::get<ExperimentRequest>(std::move(spec)));
}

absl::Status OperationManagerImpl::CheckQueue(const OperationWork& work) const {
  if (stopping_) return WithReason(absl::UnavailableError("the server is shutting down"), reason::kDraining);
  if (static_cast<int>(waiting_.size()) >= options_.max_waiting) {
    return WithReason(absl::ResourceExhaustedError(StrCat(waiting_.size(), " operations are waiting already")),
                      reason::kTooManyOperations);
  }
  if (work.claim().empty()) return absl::OkStatus();
  for (const auto& [name, other] : jobs_) {
    if (!other->status.done() && other->work->claim() == work.claim()) {
      return absl::AlreadyExistsError(StrCat(name, " is making ", work.claim()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Start(const std::string& model, OperationSpec spec) {
  auto job = std::make_shared<Job>();
  GH_ASSIGN_OR_RETURN(job->work, MakeWork(model, std::move(spec)));
  const std::lock_guard lock(mutex_);
  GH_RETURN_IF_ERROR(CheckQueue(*job->work));
  do {
    job->status.name = OperationName{options_.replica, ids_.Next()}.ToString();
  } while (jobs_.contains(job->status.name));
  job->status.kind = job->work->kind();
  job->status.model = model;
  job->status.created = Rfc3339Now();
  job->status.stage = "waiting";
  GH_RETURN_IF_ERROR(files_.Write(job->status));
  jobs_.emplace(job->status.name, job);
  waiting_.push_back(job);
  changed_.notify_all();
  return job->status;
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Read(const OperationName& name) const {
  if (!Ours(name)) {
    absl::StatusOr<OperationStatus> status = files_.Read(name);
    if (!absl::IsNotFound(status.status())) return status;
    return NoSuchOperation(StrCat("replica ", options_.replica, " sees no ", name.ToString(), ": ask replica ",
                                  name.replica, ", which ran it if it exists"));
  }
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(name.ToString());
  if (found == jobs_.end()) return NoSuchOperation("there is no such operation");
  return found->second->status;
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Get(const std::string& name) const {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, OperationName::ParseRequested(name));
  return Read(parsed);
}

absl::StatusOr<OperationStatus> OperationManagerImpl::Cancel(const std::string& name) {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, OperationName::ParseRequested(name));
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Read(parsed));
  if (status.done()) return status;
  if (!Ours(parsed)) return OtherReplica(parsed);
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(name);
    if (found == jobs_.end()) return status;  // it has ended since, and is gone
    job = found->second;
    job->cancelled.store(true);
    if (std::erase(waiting_, job) > 0) EndLocked(*job, OperationState::kCancelled);
  }
  Tell(job);
  const std::lock_guard lock(mutex_);
  return job->status;
}

OperationLoad OperationManagerImpl::Load() const {
  const std::lock_guard lock(mutex_);
  OperationLoad load = ended_;
  for (const std::shared_ptr<Job>& job : waiting_) ++load.counts[job->status.kind][OperationState::kWaiting];
  if (running_ != nullptr && !running_->status.done()) {
    ++load.counts[running_->status.kind][OperationState::kRunning];
    load.progress = running_->status.progress;
  }
  return load;
}

absl::StatusOr<OperationManager::Page> OperationManagerImpl::List(int page_size, const std::string& page_token) const {
  if (!(page_size >= 0 && page_size <= kMaxPageSize)) {
    return absl::InvalidArgumentError(StrCat("page_size is ", page_size, ", must be in [0, ", kMaxPageSize, "]"));
  }
  const size_t limit = page_size == 0 ? kDefaultPageSize : page_size;
  GH_ASSIGN_OR_RETURN(const std::vector<OperationName> names, files_.ListAfter(page_token));
  auto next = names.begin();
  Page page;
  for (; next != names.end() && page.operations.size() < limit; ++next) {
    absl::StatusOr<OperationStatus> status = Read(*next);
    if (status.ok()) page.operations.push_back(*std::move(status));
  }
  if (next != names.end()) page.next_page_token = std::prev(next)->ToString();
  return page;
}

absl::StatusOr<std::string> OperationManagerImpl::ResultPath(const std::string& name, const std::string& file) const {
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Get(name));
  return results_.PathOf(status, file);
}

absl::StatusOr<Report> OperationManagerImpl::ReadReport(const std::string& name) const {
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Get(name));
  return results_.ReadReport(status);
}

absl::StatusOr<uint64_t> OperationManagerImpl::Watch(const std::string& name, Changed changed) {
  GH_ASSIGN_OR_RETURN(const OperationName parsed, OperationName::ParseRequested(name));
  GH_ASSIGN_OR_RETURN(const OperationStatus status, Read(parsed));
  if (!status.done() && !Ours(parsed)) return OtherReplica(parsed);
  return watchers_.Add(name, std::move(changed), [&] {
    const absl::StatusOr<OperationStatus> now = Read(parsed);
    return now.ok() ? *now : status;
  });
}

void OperationManagerImpl::Tell(const std::shared_ptr<Job>& job) {
  watchers_.Tell(job->status.name, [&] {
    const std::lock_guard lock(mutex_);
    return job->status;
  });
}

void OperationManagerImpl::Work() {
  while (const std::shared_ptr<Job> job = NextJob()) Run(job);
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

void OperationManagerImpl::Run(const std::shared_ptr<Job>& job) {
  Tell(job);
  const OperationName name = *OperationName::Parse(job->status.name);
  const absl::StatusOr<OperationWork::Outcome> outcome = job->work->Run(
      {name.id, results_.FolderOf(name)},
      [&](double fraction, std::string_view stage) { OnProgress(job, fraction, stage); }, job->cancelled);
  {
    const std::lock_guard lock(mutex_);
    if (outcome.ok()) {
      job->status.progress = 1;
      job->status.result = outcome->result;
      job->status.result_bytes = outcome->result_bytes;
      EndLocked(*job, OperationState::kSucceeded);
    } else if (!job->cancelled.load() || !absl::IsCancelled(outcome.status())) {
      EndLocked(*job, OperationState::kFailed, outcome.status());
    } else {
      EndLocked(*job, stopping_ ? OperationState::kInterrupted : OperationState::kCancelled);
    }
  }
  if (job->status.files.empty()) results_.Remove(name);
  Tell(job);
  Prune();
}

void OperationManagerImpl::OnProgress(const std::shared_ptr<Job>& job, double fraction, std::string_view stage) {
  {
    const std::lock_guard lock(mutex_);
    OperationStatus& status = job->status;
    const double progress = fraction >= 0 && fraction <= 1 ? std::max(fraction, status.progress) : status.progress;
    if (progress < status.progress + kProgressStep && status.stage == stage) return;
    status.progress = progress;
    status.stage = std::string(stage);
    if (MonotonicSeconds() - job->written_at >= kSecondsBetweenWrites) WriteLocked(*job);
  }
  Tell(job);
}

void OperationManagerImpl::EndLocked(Job& job, OperationState state, const absl::Status& error) {
  job.status.state = state;
  job.status.error = error;
  job.status.ended = Rfc3339Now();
  job.status.files = results_.Files(job.status);
  if (const auto counts = ended_.counts.find(job.status.kind); counts != ended_.counts.end()) ++counts->second[state];
  if (!error.ok()) LogWarning(StrCat(job.status.name, " failed: ", Message(error)));
  WriteLocked(job);
}

// The operation goes on where its state cannot be written: its result matters more.
void OperationManagerImpl::WriteLocked(Job& job) {
  job.written_at = MonotonicSeconds();
  const absl::Status status = files_.Write(job.status);
  if (!status.ok()) LogError(StrCat("cannot write the state of ", job.status.name, ": ", Message(status)));
}

void OperationManagerImpl::Prune() {
  std::set<std::string> needed;
  std::vector<OperationName> forgotten;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, job] : jobs_) {
      if (job->status.done()) continue;
      for (std::string& need : job->work->needs()) needed.insert(std::move(need));
    }
    forgotten = ForgetOldLocked(needed);
  }
  for (const OperationName& name : forgotten) results_.Remove(name);
  corpora_->Prune(static_cast<size_t>(options_.keep_corpora), needed);
}

// The state goes first: a folder that a crash leaves without one is cleared at the start.
std::vector<OperationName> OperationManagerImpl::ForgetOldLocked(const std::set<std::string>& needed) {
  std::vector<std::pair<std::string, std::string>> ended;  // when, and which
  for (const auto& [name, job] : jobs_) {
    if (job->status.done()) ended.emplace_back(job->status.ended, name);
  }
  const auto keep = static_cast<size_t>(options_.keep_operations);
  std::sort(ended.begin(), ended.end());
  ended.resize(ended.size() - std::min(ended.size(), keep));
  std::vector<OperationName> forgotten;
  for (const auto& [when, name] : ended) {
    if (needed.contains(name)) continue;
    forgotten.push_back(*OperationName::Parse(name));
    files_.Remove(forgotten.back());
    jobs_.erase(name);
  }
  return forgotten;
}

void OperationManagerImpl::Shutdown() {
  std::vector<std::shared_ptr<Job>> ended;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (running_ != nullptr) running_->cancelled.store(true);
    for (const std::shared_ptr<Job>& job : waiting_) {
      EndLocked(*job, OperationState::kInterrupted);
      ended.push_back(job);
    }
    waiting_.clear();
    changed_.notify_all();
  }
  for (const std::shared_ptr<Job>& job : ended) Tell(job);
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
