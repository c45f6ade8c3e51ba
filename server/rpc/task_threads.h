#ifndef GATEHOUSE_SERVER_RPC_TASK_THREADS_H_
#define GATEHOUSE_SERVER_RPC_TASK_THREADS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gatehouse {

// A few threads for what a gRPC reactor must not do itself: tokenising a long prompt,
// reading and writing files.  Tasks start in the order given.  Thread-safe.  The queue
// holds no more tasks than there are live calls (CallSlots).
class TaskThreads {
 public:
  explicit TaskThreads(int threads);
  // Runs what is queued, then joins.
  ~TaskThreads();

  void Run(std::function<void()> task);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_TASK_THREADS_H_
