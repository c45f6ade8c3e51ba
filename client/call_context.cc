#include "client/call_context.h"

#include <algorithm>

namespace gatehouse::client {

void Canceller::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
  changed_.notify_all();
}

bool Canceller::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool Canceller::WaitFor(absl::Duration duration) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoNanoseconds(duration), [this] { return cancelled_; });
}

bool CanBeSent(const std::string& header) {
  return std::all_of(header.begin(), header.end(), [](char c) { return c >= 0x20 && c <= 0x7E; });
}

CallContext::CallContext(absl::Time deadline, Canceller* canceller, const std::string& replica)
    : canceller_(canceller) {
  // No replica has a name that cannot be sent: whichever answers says so.
  if (!replica.empty() && CanBeSent(replica)) context_.AddMetadata("gatehouse-replica", replica);
  if (deadline != absl::InfiniteFuture()) context_.set_deadline(absl::ToChronoTime(deadline));
  if (canceller_ == nullptr) return;
  std::lock_guard lock(canceller_->mutex_);
  canceller_->running_.insert(&context_);
  // A context that is cancelled before its call begins fails the call at once.
  if (canceller_->cancelled_) context_.TryCancel();
}

CallContext::~CallContext() {
  if (canceller_ == nullptr) return;
  std::lock_guard lock(canceller_->mutex_);
  canceller_->running_.erase(&context_);
}

}  // namespace gatehouse::client
