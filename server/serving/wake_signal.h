#ifndef GATEHOUSE_SERVER_SERVING_WAKE_SIGNAL_H_
#define GATEHOUSE_SERVER_SERVING_WAKE_SIGNAL_H_

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace gatehouse {

// Wakes the one thread that waits on it.  A notification that comes while it does not
// wait is kept for the next wait.  Thread-safe.
class WakeSignal {
 public:
  void Notify() {
    const std::lock_guard lock(mutex_);
    notified_ = true;
    condition_.notify_one();
  }

  // Returns at the next notification, or after `limit`.
  void WaitFor(absl::Duration limit) {
    std::unique_lock lock(mutex_);
    condition_.wait_for(lock, absl::ToChronoNanoseconds(limit), [this] { return notified_; });
    notified_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool notified_ = false;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_WAKE_SIGNAL_H_
