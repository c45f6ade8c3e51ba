#include "client/call_context.h"

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

CallContext::CallContext(absl::Time deadline, Canceller* canceller, const std::string& replica)
    : canceller_(canceller) {
  if (!replica.empty()) context_.AddMetadata("gatehouse-replica", replica);
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
