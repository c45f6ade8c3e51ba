#include "server/serving/model_lane.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "server/base/error_reason.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

// Besides every decoding call's row, a step takes rows of prompts and texts up to this
// many full chunks, so that they hardly delay the tokens of the others.
constexpr int kLongChunksPerStep = 2;

absl::Status QueueFull(std::string_view why) {
  return WithReason(absl::ResourceExhaustedError(StrCat("the model's queue is full: ", why)), reason::kQueueFull);
}

}  // namespace

ModelLane::ModelLane(ServedModel& model, const SchedulerOptions& options, Observer& observer, DeadlineTimer& timer)
    : model_(model), options_(options), observer_(observer), timer_(timer) {}

absl::Status ModelLane::CheckRoom(int64_t prompt_tokens) const {
  const std::lock_guard lock(mutex_);
  return CheckRoomLocked(prompt_tokens);
}

// A call that will run at once does not wait, whatever the queue's limits.
absl::Status ModelLane::CheckRoomLocked(int64_t prompt_tokens) const {
  if (draining_) return WithReason(absl::UnavailableError("the server is shutting down"), reason::kDraining);
  const int free = memory_full_ ? 0 : std::max(0, options_.max_running - static_cast<int>(running_.size()));
  const int ahead = static_cast<int>(waiting_.size());
  if (ahead < free) return absl::OkStatus();
  if (ahead >= free + options_.max_waiting) {
    return QueueFull(StrCat(ahead, " calls are waiting"));
  }
  if (prompt_tokens > options_.max_waiting_prompt_tokens - waiting_prompt_tokens_) {
    return QueueFull(StrCat(waiting_prompt_tokens_, " prompt tokens are waiting, the limit is ",
                            options_.max_waiting_prompt_tokens));
  }
  return absl::OkStatus();
}

absl::Status ModelLane::Enqueue(const std::shared_ptr<ScheduledCall>& call) {
  const std::lock_guard lock(mutex_);
  const absl::Status room = CheckRoomLocked(call->prompt_tokens());
  if (!room.ok()) return room;
  timer_.Add(call);
  waiting_.push_back(call);
  waiting_prompt_tokens_ += call->prompt_tokens();
  return absl::OkStatus();
}

void ModelLane::EndIfWaiting(const std::shared_ptr<ScheduledCall>& call) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = std::find(waiting_.begin(), waiting_.end(), call);
    if (at == waiting_.end() || call.get() == admitting_) return;
    waiting_.erase(at);
    waiting_prompt_tokens_ -= call->prompt_tokens();
    if (waiting_.empty()) memory_full_ = false;
  }
  End(call, call->stop_status(absl::Now()));
}

ModelLoad ModelLane::Load() const {
  ModelLoad load;
  load.model = model_.name;
  load.kv = model_.engine->kv_usage();
  const std::lock_guard lock(mutex_);
  load.running = static_cast<int>(running_.size());
  load.waiting = static_cast<int>(waiting_.size());
  load.waiting_prompt_tokens = waiting_prompt_tokens_;
  return load;
}

void ModelLane::Drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void ModelLane::AbortAll() {
  const std::lock_guard lock(mutex_);
  for (const auto& call : waiting_) call->Abort();
  for (const auto& call : running_) call->Abort();
}

bool ModelLane::empty() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && running_.empty();
}

absl::Time ModelLane::NextStall() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& call : running_) next = std::min(next, call->unread_since + options_.stall_limit);
  return next;
}

bool ModelLane::RunRound() {
  const absl::Time now = absl::Now();
  EndStoppedCalls(now);
  AdmitWaitingCalls(now);
  Batch batch = CollectRows(now);
  if (batch.rows.empty()) return false;

  absl::StatusOr<std::vector<RowResult>> results = model_.engine->Step(batch.rows);
  if (results.ok() && results->size() != batch.rows.size()) {
    results = absl::InternalError("the engine returned another number of results than rows");
  }
  if (!results.ok()) {
    for (ScheduledCall* call : batch.calls) EndRunning(*call, results.status());
    return true;
  }
  observer_.OnStep(model_.name, static_cast<int>(batch.rows.size()), batch.tokens,
                   absl::ToDoubleSeconds(absl::Now() - now));
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    Deliver(*batch.calls[i], batch.rows[i], batch.phases[i], std::move((*results)[i]));
  }
  return true;
}

void ModelLane::EndStoppedCalls(absl::Time now) {
  std::vector<std::pair<std::shared_ptr<ScheduledCall>, absl::Status>> stopped;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const std::shared_ptr<ScheduledCall>& call) {
      absl::Status status = call->stop_status(now);
      if (status.ok()) return false;
      waiting_prompt_tokens_ -= call->prompt_tokens();
      stopped.emplace_back(call, std::move(status));
      return true;
    });
    if (waiting_.empty()) memory_full_ = false;
  }
  for (const auto& call : running_) {
    absl::Status status = call->stop_status(now);
    if (status.ok() && now - call->unread_since >= options_.stall_limit && !call->task().sink().CanAccept()) {
      status = WithReason(absl::ResourceExhaustedError(
                              StrCat("the reader was too slow for ", absl::FormatDuration(options_.stall_limit))),
                          reason::kReaderTooSlow);
    }
    if (!status.ok()) stopped.emplace_back(call, std::move(status));
  }
  for (const auto& [call, status] : stopped) End(call, status);
}

void ModelLane::AdmitWaitingCalls(absl::Time now) {
  while (true) {
    std::shared_ptr<ScheduledCall> call;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || static_cast<int>(running_.size()) >= options_.max_running) return;
      call = waiting_.front();
      admitting_ = call.get();
    }
    if (!Admit(call, now)) return;
  }
}

bool ModelLane::Admit(const std::shared_ptr<ScheduledCall>& call, absl::Time now) {
  absl::Status status = call->stop_status(now);
  if (status.ok()) {
    absl::StatusOr<SequenceId> sequence = model_.engine->Open(call->task().sequence_tokens());
    // Where nothing runs, no memory will be freed by waiting.
    if (absl::IsResourceExhausted(sequence.status()) && !running_.empty()) {
      const std::lock_guard lock(mutex_);
      memory_full_ = true;
      admitting_ = nullptr;
      return false;
    }
    if (sequence.ok()) call->sequence = *sequence;
    status = absl::IsResourceExhausted(sequence.status()) ? WithReason(sequence.status(), reason::kKvMemoryFull)
                                                          : sequence.status();
  }
  {
    const std::lock_guard lock(mutex_);
    memory_full_ = false;
    admitting_ = nullptr;
    waiting_.pop_front();
    waiting_prompt_tokens_ -= call->prompt_tokens();
    if (status.ok()) running_.push_back(call);
  }
  if (!status.ok()) {
    End(call, status);
    return true;
  }
  call->admitted = now;
  call->task().OnAdmitted(absl::ToDoubleSeconds(now - call->started()));
  return true;
}

ModelLane::Batch ModelLane::CollectRows(absl::Time now) {
  Batch batch;
  int long_tokens = 0;
  std::vector<std::pair<ScheduledCall*, absl::Status>> failed;
  for (const auto& call : running_) {
    if (!call->task().sink().CanAccept()) {
      call->unread_since = std::min(call->unread_since, now);
      continue;
    }
    call->unread_since = absl::InfiniteFuture();
    Task::Next next = call->task().NextRow();
    const int tokens = static_cast<int>(next.row.tokens.size());
    if (next.phase != Phase::kDecode) {
      if (long_tokens > 0 && long_tokens + tokens > kLongChunksPerStep * options_.prefill_chunk) continue;
      long_tokens += tokens;
    }
    if (model_.engine->Length(*call->sequence) != next.position) {
      const absl::Status status = model_.engine->Rollback(*call->sequence, next.position);
      if (!status.ok()) {
        failed.emplace_back(call.get(), status);
        continue;
      }
    }
    next.row.sequence = *call->sequence;
    next.row.cancelled = call->stop_flag();
    batch.tokens += tokens;
    batch.calls.push_back(call.get());
    batch.phases.push_back(next.phase);
    batch.rows.push_back(std::move(next.row));
  }
  for (const auto& [call, status] : failed) EndRunning(*call, status);
  return batch;
}

void ModelLane::Deliver(ScheduledCall& call, const Row& row, Phase phase, RowResult result) {
  if (!result.status.ok()) {
    const absl::Status stop = call.stop_status(absl::Now());
    EndRunning(call, absl::IsCancelled(result.status) && !stop.ok() ? stop : result.status);
    return;
  }
  observer_.OnRouted(model_.name, phase, static_cast<int>(row.tokens.size()),
                     {.linear = result.linear_tokens, .ladder = result.ladder_tokens, .skip = result.skip_tokens});
  const absl::StatusOr<bool> complete = call.task().Deliver(std::move(result));
  if (!complete.ok() || *complete) {
    EndRunning(call, complete.status());
    return;
  }
  if (phase == Phase::kDecode) return;
  // Whoever had a long row goes behind the others who wait for one.
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const auto& c) { return c.get() == &call; });
  std::rotate(at, at + 1, running_.end());
}

void ModelLane::EndRunning(ScheduledCall& call, const absl::Status& status) {
  const auto at = std::find_if(running_.begin(), running_.end(), [&](const auto& c) { return c.get() == &call; });
  End(std::shared_ptr<ScheduledCall>(*at), status);
}

void ModelLane::End(const std::shared_ptr<ScheduledCall>& call, const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(running_, call);
  }
  timer_.Remove(call);
  if (call->sequence.has_value()) model_.engine->Close(*call->sequence);
  const absl::Time now = absl::Now();
  CallObservation observation;
  call->task().Describe(observation);
  observation.model = model_.name;
  observation.code = status.code();
  observation.queue_seconds = absl::ToDoubleSeconds(std::min(now, call->admitted) - call->started());
  observation.total_seconds = absl::ToDoubleSeconds(now - call->started());
  observer_.OnCallEnd(observation);
  call->task().sink().OnEnd(status);
  call->EndTask();
}

}  // namespace gatehouse
