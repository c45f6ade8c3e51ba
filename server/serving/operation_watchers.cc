#include "server/serving/operation_watchers.h"

#include <utility>
#include <vector>

namespace gatehouse {

uint64_t OperationWatchers::Add(const std::string& name, Changed changed, const ReadStatus& read) {
  const std::lock_guard lock(mutex_);
  const OperationStatus status = read();
  const uint64_t watch = ++last_;
  if (!status.done()) watches_[watch] = Watch{name, changed};
  changed(status);
  return watch;
}

void OperationWatchers::Remove(uint64_t watch) {
  const std::lock_guard lock(mutex_);
  watches_.erase(watch);
}

void OperationWatchers::Tell(const std::string& name, const ReadStatus& read) {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> interested;
  for (const auto& [watch, entry] : watches_) {
    if (entry.name == name) interested.push_back(watch);
  }
  if (interested.empty()) return;
  const OperationStatus status = read();
  for (const uint64_t watch : interested) {
    const auto found = watches_.find(watch);
    if (found == watches_.end()) continue;
    const Changed changed = found->second.changed;
    if (status.done()) watches_.erase(found);
    changed(status);
  }
}

}  // namespace gatehouse
