#include "client/load/load_run.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

namespace gatehouse::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kProgressSeconds = 0.2;

// One run of a load.  RunLoad owns it; the calls' events come on gRPC's threads.
class LoadRun {
 public:
  explicit LoadRun(const LoadOptions& options) : options_(options) {}

  LoadResult Run(const CallPlan& plan) {
    while (auto call = plan()) {
      if (options_.concurrency > 0) {
        WaitForRoom(options_.concurrency);
        call->at = Now();
      }
      const bool late = options_.duration > 0 && call->at >= options_.duration;
      if (late || !WaitUntil(call->at)) break;
      Send(*call);
    }
    WaitForRoom(1);
    result_.interrupted = options_.canceller->cancelled();
    return std::move(result_);
  }

 private:
  double Now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void Report() {
    if (!options_.on_progress) return;
    size_t sent = 0, ended = 0;
    {
      const std::lock_guard lock(mutex_);
      sent = result_.calls.size();
      ended = sent - running_;
    }
    options_.on_progress(sent, ended, Now());
  }

  // Until that time; false where the load is to end before.
  bool WaitUntil(double at) {
    while (!options_.canceller->cancelled()) {
      const double left = at - Now();
      if (left <= 0) return true;
      options_.canceller->WaitFor(absl::Seconds(std::min(left, kProgressSeconds)));
      if (left > kProgressSeconds) Report();
    }
    return false;
  }

  // Until fewer than `most` calls run.  Cancelled calls end too.
  void WaitForRoom(size_t most) {
    const auto slice = std::chrono::duration<double>(kProgressSeconds);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, slice, [&] { return running_ < most; })) {
      lock.unlock();
      Report();
      lock.lock();
    }
  }

  void Send(const PlannedCall& call) {
    CallRecord* record = nullptr;
    size_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      number = result_.calls.size();
      record = &result_.calls.emplace_back();
      ++running_;
    }
    record->intended = call.at;
    record->prompt_tokens = call.prompt_tokens;
    const v1::GenerateRequest request = options_.make_request(call, number);
    record->sent = Now();
    const double late = options_.concurrency > 0 ? 0 : record->sent - record->intended;
    GenerationEvents events;
    events.on_start = [record](const v1::GenerationStart&) { return record->admitted = true; };
    events.on_token = [this, record, last = record->sent](const v1::GeneratedToken&) mutable {
      const double now = Now();
      if (record->first_token.has_value()) {
        record->gaps.push_back(static_cast<float>(now - last));
      } else {
        record->first_token = now;
      }
      ++record->received_tokens;
      last = now;
      return true;
    };
    options_.clients[number % options_.clients.size()]->StartGenerate(
        request, std::move(events), [this, record](auto summary) { Ended(*record, std::move(summary)); },
        {.timeout = std::max(absl::ZeroDuration(), options_.call_timeout - absl::Seconds(late)),
         .canceller = options_.canceller,
         .replica = options_.replica});
  }

  void Ended(CallRecord& record, absl::StatusOr<v1::GenerationSummary> summary) {
    const double now = Now();
    const std::lock_guard lock(mutex_);
    record.ended = now;
    record.status = summary.status();
    if (summary.ok()) {
      record.queue_seconds = summary->queue_seconds();
      AddRouting(summary->routing());
    }
    result_.seconds = std::max(result_.seconds, now);
    --running_;
    changed_.notify_all();
  }

  void AddRouting(const v1::RoutingSummary& routing) {
    RoutingTotals& totals = result_.routing;
    for (const v1::LayerRouting& layer : routing.layers()) {
      // No model has more layers; a hostile server's number must not fill the memory.
      if (layer.layer() > 65535) continue;
      if (totals.layers.size() <= layer.layer()) totals.layers.resize(layer.layer() + 1);
      totals.layers[layer.layer()] +=
          {layer.full_tokens(), layer.linear_tokens(), layer.ladder_tokens(), layer.skip_tokens()};
    }
    totals.decisions += routing.decisions();
    if (routing.decisions() == 0) return;
    const double weight = static_cast<double>(routing.decisions()) / static_cast<double>(totals.decisions);
    totals.work_saved += (routing.mlp_work_saved() - totals.work_saved) * weight;
  }

  const LoadOptions& options_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t running_ = 0;
  LoadResult result_;
};

}  // namespace

std::optional<double> CallRecord::time_per_token() const {
  if (gaps.empty()) return std::nullopt;
  return std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size());
}

LoadResult RunLoad(const CallPlan& plan, const LoadOptions& options) { return LoadRun(options).Run(plan); }

}  // namespace gatehouse::client
