#ifndef GATEHOUSE_SERVER_SERVING_DEADLINE_TIMER_H_
#define GATEHOUSE_SERVER_SERVING_DEADLINE_TIMER_H_

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/serving/scheduled_call.h"
#include "server/serving/wake_signal.h"

namespace gatehouse {

// Stops calls at their deadlines, also in the middle of a step, on a thread of its own.
// Thread-safe.
class DeadlineTimer {
 public:
  // Called on the timer's thread with each call that it has stopped.
  using Stopped = std::function<void(const std::shared_ptr<ScheduledCall>&)>;

  explicit DeadlineTimer(Stopped stopped);
  ~DeadlineTimer();

  // Calls without a deadline are not kept.
  void Add(std::shared_ptr<ScheduledCall> call);
  // Stops no more calls, and joins the thread; not thread-safe.  Called by the destructor.
  void Stop();
  // Forgets a call that has ended.
  void Remove(const std::shared_ptr<ScheduledCall>& call);

 private:
  using Entry = std::pair<absl::Time, std::shared_ptr<ScheduledCall>>;

  void Run();
  // Takes out the calls whose deadline has come.
  std::vector<std::shared_ptr<ScheduledCall>> TakeDue(absl::Time now);

  const Stopped stopped_;
  WakeSignal wake_;
  std::mutex mutex_;
  std::set<Entry> calls_;  // guarded by mutex_; soonest first
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_DEADLINE_TIMER_H_
