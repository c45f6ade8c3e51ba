#ifndef GATEHOUSE_SERVER_RPC_CALL_SLOTS_H_
#define GATEHOUSE_SERVER_RPC_CALL_SLOTS_H_

#include <atomic>
#include <memory>

namespace gatehouse {

// Caps how many calls are in work at once, over all connections.  A stream that was
// opened and reset leaves its connection's own count at once, while its handler may
// still be at work: this count is of handlers.  Thread-safe; slots may outlive it.
class CallSlots {
 public:
  explicit CallSlots(int limit) : limit_(limit), taken_(std::make_shared<std::atomic<int>>(0)) {}

  // Held for as long as the call is in work; null when all are taken.
  using Slot = std::shared_ptr<void>;
  Slot TryTake() {
    int taken = taken_->load(std::memory_order_relaxed);
    do {
      if (taken >= limit_) return nullptr;
    } while (!taken_->compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
    return Slot(taken_.get(), [taken = taken_](void*) { taken->fetch_sub(1, std::memory_order_relaxed); });
  }

  int taken() const { return taken_->load(std::memory_order_relaxed); }
  int limit() const { return limit_; }

 private:
  const int limit_;
  const std::shared_ptr<std::atomic<int>> taken_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_CALL_SLOTS_H_
