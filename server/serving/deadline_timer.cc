#include "server/serving/deadline_timer.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace gatehouse {

DeadlineTimer::DeadlineTimer(Stopped stopped) : stopped_(std::move(stopped)), thread_([this] { Run(); }) {}

DeadlineTimer::~DeadlineTimer() { Stop(); }

void DeadlineTimer::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.Notify();
  if (thread_.joinable()) thread_.join();
}

void DeadlineTimer::Add(std::shared_ptr<ScheduledCall> call) {
  if (call->deadline() == absl::InfiniteFuture()) return;
  bool soonest = false;
  {
    const std::lock_guard lock(mutex_);
    const auto added = calls_.emplace(call->deadline(), call).first;
    soonest = added == calls_.begin();
  }
  if (soonest) wake_.Notify();
}

void DeadlineTimer::Remove(const std::shared_ptr<ScheduledCall>& call) {
  const std::lock_guard lock(mutex_);
  calls_.erase({call->deadline(), call});
}

std::vector<std::shared_ptr<ScheduledCall>> DeadlineTimer::TakeDue(absl::Time now) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<ScheduledCall>> due;
  while (!calls_.empty() && calls_.begin()->first <= now) {
    due.push_back(calls_.begin()->second);
    calls_.erase(calls_.begin());
  }
  return due;
}

void DeadlineTimer::Run() {
  while (true) {
    for (const auto& call : TakeDue(absl::Now())) {
      call->Expire();
      stopped_(call);
    }
    absl::Duration wait = absl::Hours(1);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (!calls_.empty()) wait = std::min(wait, calls_.begin()->first - absl::Now());
    }
    wake_.WaitFor(wait);
  }
}

}  // namespace gatehouse
