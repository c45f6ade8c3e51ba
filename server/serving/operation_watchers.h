#ifndef GATEHOUSE_SERVER_SERVING_OPERATION_WATCHERS_H_
#define GATEHOUSE_SERVER_SERVING_OPERATION_WATCHERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "server/serving/operations.h"

namespace gatehouse {

// Who wants to hear of changes of which operation.  Each hears the states in order,
// the final one last and once.  Thread-safe; a callback may remove its own watch.
class OperationWatchers {
 public:
  using Changed = OperationManager::Changed;
  // Reads the state now.  Called with the watchers' lock held, so that no one hears an
  // older state after a newer one.
  using ReadStatus = std::function<OperationStatus()>;

  // Tells `changed` the state now; returns the watch's number.
  uint64_t Add(const std::string& name, Changed changed, const ReadStatus& read);
  // After it returns, the watch's callback is not called, nor running elsewhere.
  void Remove(uint64_t watch);
  void Tell(const std::string& name, const ReadStatus& read);

 private:
  struct Watch {
    std::string name;
    Changed changed;
  };

  std::recursive_mutex mutex_;
  std::map<uint64_t, Watch> watches_;
  uint64_t last_ = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OPERATION_WATCHERS_H_
