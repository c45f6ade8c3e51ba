#include "server/serving/deadline_timer.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace gatehouse {

DeadlineTimer::DeadlineTimer() : thread_([this] { Run(); }) {}

DeadlineTimer::~DeadlineTimer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.Notify();
  thread_.join();
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

void DeadlineTimer::Run() {
  while (true) {
    absl::Duration wait = absl::Hours(1);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      while (!calls_.empty() && calls_.begin()->first <= absl::Now()) {
        calls_.begin()->second->Expire();
        calls_.erase(calls_.begin());
      }
      if (!calls_.empty()) wait = std::min(wait, calls_.begin()->first - absl::Now());
    }
    wake_.WaitFor(wait);
  }
}

}  // namespace gatehouse
