#include "server/serving/scheduler.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "server/base/clock.h"
#include "server/base/status_macros.h"
#include "server/serving/analysis_task.h"
#include "server/serving/deadline_timer.h"
#include "server/serving/generation_task.h"
#include "server/serving/model_lane.h"
#include "server/serving/scheduled_call.h"
#include "server/serving/scoring_task.h"
#include "server/serving/wake_signal.h"

namespace gatehouse {
namespace {

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(const ModelCatalog& catalog, const SchedulerOptions& options, Observer& observer)
      : catalog_(catalog),
        options_(options),
        observer_(observer),
        wake_(std::make_shared<WakeSignal>()),
        timer_([this](const std::shared_ptr<ScheduledCall>& late) {
          for (const auto& lane : lanes_) lane->EndIfWaiting(late);
        }) {
    for (ServedModel* model : catalog.models()) {
      lanes_.push_back(std::make_unique<ModelLane>(*model, options, observer, timer_));
    }
    Beat();
    thread_ = std::thread([this] { Run(); });
  }

  ~SchedulerImpl() override { Shutdown(); }

  absl::StatusOr<std::shared_ptr<Call>> StartGenerate(GenerateRequest request, const CallOptions& options,
                                                      std::shared_ptr<GenerationSink> sink) override {
    const std::string model = request.model;
    return Start("generate", model, options, [&](const TaskContext& context) {
      return GenerationTask::Create(context, std::move(request), std::move(sink));
    });
  }

  absl::StatusOr<std::shared_ptr<Call>> StartScore(ScoreRequest request, const CallOptions& options,
                                                   std::shared_ptr<ScoreSink> sink) override {
    const std::string model = request.model;
    return Start("score", model, options, [&](const TaskContext& context) {
      return ScoringTask::Create(context, std::move(request), std::move(sink));
    });
  }

  absl::StatusOr<std::shared_ptr<Call>> StartAnalysis(AnalysisRequest request, const CallOptions& options,
                                                      std::shared_ptr<AnalysisSink> sink) override {
    const std::string model = request.model;
    const std::string_view method = request.records.nonlinearity ? "nonlinearity" : "consensus";
    return Start(method, model, options, [&](const TaskContext& context) {
      return AnalysisTask::Create(context, std::move(request), std::move(sink));
    });
  }

  std::vector<ModelLoad> Load() const override {
    std::vector<ModelLoad> loads;
    for (const auto& lane : lanes_) loads.push_back(lane->Load());
    return loads;
  }

  absl::Duration SinceHeartbeat() const override { return absl::Seconds(MonotonicSeconds() - heartbeat_.load()); }

  void Drain() override {
    for (const auto& lane : lanes_) lane->Drain();
  }

  void Shutdown() override {
    Drain();
    for (const auto& lane : lanes_) lane->AbortAll();
    stopping_.store(true);
    wake_->Notify();
    const std::lock_guard lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
    timer_.Stop();  // it may be ending the last call
  }

 private:
  using MakeTask = std::function<absl::StatusOr<std::unique_ptr<Task>>(const TaskContext&)>;

  // The loop: every model takes its turn, a step each.
  void Run() {
    while (true) {
      bool worked = false;
      for (const auto& lane : lanes_) {
        Beat();
        worked |= lane->RunRound();
      }
      if (worked) continue;
      if (stopping_.load() && AllEmpty()) return;
      WaitForWork();
    }
  }

  // Until something is started, stopped or resumed, a reader is given up, or a second
  // has passed.
  void WaitForWork() {
    absl::Duration wait = absl::Seconds(1);
    for (const auto& lane : lanes_) wait = std::min(wait, lane->NextStall() - absl::Now());
    wake_->WaitFor(wait);
  }

  bool AllEmpty() const {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->empty(); });
  }

  void Beat() { heartbeat_.store(MonotonicSeconds()); }

  absl::StatusOr<std::shared_ptr<Call>> Start(std::string_view method, const std::string& model,
                                              const CallOptions& options, const MakeTask& make_task) {
    const absl::Time started = absl::Now();
    const absl::StatusOr<ModelLane*> lane = FindLane(model);
    absl::StatusOr<std::shared_ptr<Call>> call =
        lane.ok() ? StartIn(**lane, started, options, make_task) : absl::StatusOr<std::shared_ptr<Call>>(lane.status());
    if (!call.ok()) {
      CallObservation observation;
      if (lane.ok()) observation.model = model;
      observation.method = std::string(method);
      observation.code = call.status().code();
      observation.total_seconds = absl::ToDoubleSeconds(absl::Now() - started);
      observer_.OnCallEnd(observation);
    }
    return call;
  }

  absl::StatusOr<ModelLane*> FindLane(const std::string& model) const {
    GH_ASSIGN_OR_RETURN(const ServedModel* const served, catalog_.Find(model));
    for (const auto& lane : lanes_) {
      if (&lane->model() == served) return lane.get();
    }
    return absl::UnavailableError("the model is still loading");
  }

  absl::StatusOr<std::shared_ptr<Call>> StartIn(ModelLane& lane, absl::Time started, const CallOptions& options,
                                                const MakeTask& make_task) {
    if (started >= options.deadline) return absl::DeadlineExceededError("the call's deadline has passed");
    // Before the work of reading the request; Enqueue checks again.
    GH_RETURN_IF_ERROR(lane.CheckRoom(0));
    const TaskContext context{.model = &lane.model(), .observer = &observer_, .prefill_chunk = options_.prefill_chunk};
    GH_ASSIGN_OR_RETURN(std::unique_ptr<Task> task, make_task(context));
    const auto call = std::make_shared<ScheduledCall>(std::move(task), options.deadline, started, wake_);
    GH_RETURN_IF_ERROR(lane.Enqueue(call));
    wake_->Notify();
    return std::shared_ptr<Call>(call);
  }

  const ModelCatalog& catalog_;
  const SchedulerOptions options_;
  Observer& observer_;
  const std::shared_ptr<WakeSignal> wake_;
  std::vector<std::unique_ptr<ModelLane>> lanes_;
  DeadlineTimer timer_;  // after the lanes, which its thread tells of late calls
  std::atomic<double> heartbeat_{0};
  std::atomic<bool> stopping_{false};
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Scheduler> Scheduler::Create(const ModelCatalog& catalog, const SchedulerOptions& options,
                                             Observer& observer) {
  return std::make_unique<SchedulerImpl>(catalog, options, observer);
}

}  // namespace gatehouse
