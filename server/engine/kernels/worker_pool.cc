#include "server/engine/kernels/worker_pool.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>

namespace gatehouse {
namespace {

constexpr int kPieceBits = 16;
constexpr int kMaxPieces = (1 << kPieceBits) - 1;

uint64_t PackClaim(uint32_t region, uint32_t pieces, uint32_t next) {
  return uint64_t{region} << 32 | uint64_t{pieces} << kPieceBits | next;
}
uint32_t Pieces(uint64_t claim) { return claim >> kPieceBits & kMaxPieces; }
uint32_t NextPiece(uint64_t claim) { return claim & kMaxPieces; }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until `done` or the time is up; returns whether it is done.
template <typename Done>
bool SpinUntil(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(WorkerPool::kSpinMicroseconds);
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

}  // namespace

WorkerPool::WorkerPool(int threads) {
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { WorkerLoop(thread); });
}

WorkerPool::~WorkerPool() {
  stopping_.store(true, std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_release);
  region_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

WorkerPool& WorkerPool::Shared() {
  // Never destroyed: threads may outlive static objects.
  static WorkerPool* const pool = new WorkerPool(std::max(1, at::get_num_threads()));
  return *pool;
}

void WorkerPool::Run(int pieces, Body body) {
  std::unique_lock<std::mutex> lock(caller_mu_, std::try_to_lock);
  if (pieces <= 1 || pieces > kMaxPieces || workers_.empty() || !lock.owns_lock()) {
    for (int piece = 0; piece < pieces; ++piece) body(piece, 0);
    return;
  }
  body_ = &body;
  pending_.store(pieces, std::memory_order_relaxed);
  const uint32_t region = region_.load(std::memory_order_relaxed) + 1;
  claim_.store(PackClaim(region, pieces, 0), std::memory_order_release);
  region_.store(region, std::memory_order_release);
  region_.notify_all();
  Work(0);
  const auto done = [this] { return pending_.load(std::memory_order_acquire) == 0; };
  if (SpinUntil(done)) return;
  for (uint32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;) {
    pending_.wait(left, std::memory_order_acquire);
  }
}

void WorkerPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = AwaitRegion(seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    Work(thread);
  }
}

uint32_t WorkerPool::AwaitRegion(uint32_t seen) {
  const auto changed = [&] { return region_.load(std::memory_order_acquire) != seen; };
  if (!SpinUntil(changed)) region_.wait(seen, std::memory_order_acquire);
  return region_.load(std::memory_order_acquire);
}

void WorkerPool::Work(int thread) {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while (NextPiece(claim) < Pieces(claim)) {
    // On failure `claim` holds the newer word, perhaps of a newer region: also good.
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    // The region cannot end, nor its body go away, before this piece is done.
    (*body_)(static_cast<int>(NextPiece(claim)), thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    claim = claim_.load(std::memory_order_acquire);
  }
}

}  // namespace gatehouse
