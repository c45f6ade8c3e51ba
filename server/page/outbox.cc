#include "server/page/outbox.h"

namespace gatehouse {

bool Outbox::Put(std::string line) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || waiting_.size() < limit_bytes_; });
  if (closed_) return false;
  waiting_ += line;
  changed_.notify_all();
  return true;
}

void Outbox::End() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Outbox::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

Outbox::Taken Outbox::Take(absl::Duration patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(patience), [&] { return ended_ || !waiting_.empty(); });
  Taken taken{std::exchange(waiting_, {}), ended_};
  changed_.notify_all();
  return taken;
}

}  // namespace gatehouse
