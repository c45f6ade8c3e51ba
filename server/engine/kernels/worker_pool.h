#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_WORKER_POOL_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace gatehouse {

// Threads that share the pieces of short parallel regions: a decode step has about 150
// of them, a few microseconds to a millisecond long.
//
// Pieces are claimed one by one, so a thread the machine has no time for costs at most
// the piece it holds.  Idle threads spin for kSpinMicroseconds, then sleep: spinning
// longer would take the processor from whoever else needs it.
//
// Any thread may call Run.  While one call has the workers, another runs its pieces
// alone.
class WorkerPool {
 public:
  static constexpr int kSpinMicroseconds = 50;

  // `threads` counts the caller: one fewer is started.  REQUIRES threads ≥ 1.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The process's pool, as wide as LibTorch's was when it was first asked for.
  static WorkerPool& Shared();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(piece, thread) once for each piece in [0, pieces), on this thread and the
  // workers, and returns when all are done.  `thread` in [0, threads()) names who runs
  // it: pieces of one region that run at the same time have different ones.  The body
  // must not throw and must not call Run.
  using Body = absl::FunctionRef<void(int piece, int thread)>;
  void Run(int pieces, Body body);

 private:
  void WorkerLoop(int thread);
  // Runs pieces of the current region until none is left to claim.
  void Work(int thread);
  // Waits for a region other than `seen` and returns its number.
  uint32_t AwaitRegion(uint32_t seen);

  // The region in progress, in one word that is claimed from by compare-and-swap: its
  // number (32 bits), pieces (16), next piece (16).  The number keeps a late thread from
  // claiming a piece of a region it did not look at.
  std::atomic<uint64_t> claim_{0};
  // What woken threads look at: the number of the newest region.
  std::atomic<uint32_t> region_{0};
  // Pieces of the region that are not done.
  std::atomic<uint32_t> pending_{0};
  std::atomic<bool> stopping_{false};
  // Written before the region is published, read after a piece of it is claimed.
  const Body* body_ = nullptr;
  std::mutex caller_mu_;  // held by the call that has the workers
  std::vector<std::thread> workers_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_WORKER_POOL_H_
