#ifndef GATEHOUSE_SERVER_RPC_CALL_SLOTS_H_
#define GATEHOUSE_SERVER_RPC_CALL_SLOTS_H_

#include <atomic>
#include <memory>

namespace gatehouse {

// Caps how many calls are in work at once, over all connections.  A stream that was
// opened and reset leaves its connection's own count at once, while its handler may
// still be at work: this count is of handlers.  Thread-safe; outlives its slots.
class CallSlots {
 public:
  explicit CallSlots(int limit) : limit_(limit) {}

  // Held for as long as the call is in work; null when all are taken.
  using Slot = std::shared_ptr<void>;
  Slot TryTake() {
    if (taken_.fetch_add(1, std::memory_order_relaxed) >= limit_) {
      taken_.fetch_sub(1, std::memory_order_relaxed);
      return nullptr;
    }
    return Slot(this, [this](void*) { taken_.fetch_sub(1, std::memory_order_relaxed); });
  }

  int taken() const { return taken_.load(std::memory_order_relaxed); }
  int limit() const { return limit_; }

 private:
  const int limit_;
  std::atomic<int> taken_{0};
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_CALL_SLOTS_H_
