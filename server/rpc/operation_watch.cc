#include "server/rpc/operation_watch.h"

#include <utility>

#include "gatehouse/v1/operations.pb.h"
#include "server/rpc/task_threads.h"
#include "server/rpc/translate.h"

namespace gatehouse {

absl::StatusOr<std::shared_ptr<Call>> OperationWatch::Start(const ServiceContext& service, const std::string& name,
                                                            std::shared_ptr<StreamWriter> writer) {
  std::shared_ptr<OperationWatch> feed(new OperationWatch(service, std::move(writer)));
  const absl::StatusOr<uint64_t> watch =
      service.operations->Watch(name, [feed](const OperationStatus& status) { feed->OnChanged(status); });
  if (!watch.ok()) return watch.status();
  const std::lock_guard lock(feed->mutex_);
  feed->watch_ = *watch;
  if (feed->ended_) feed->Leave();
  return std::shared_ptr<Call>(feed);
}

OperationWatch::OperationWatch(const ServiceContext& service, std::shared_ptr<StreamWriter> writer)
    : service_(service), writer_(std::move(writer)) {}

void OperationWatch::OnChanged(const OperationStatus& status) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (writer_->CanAccept()) {
    Send(status);
  } else {
    unsent_ = status;
  }
}

void OperationWatch::Resume() {
  const std::lock_guard lock(mutex_);
  if (ended_ || !unsent_.has_value()) return;
  const OperationStatus status = *std::exchange(unsent_, std::nullopt);
  Send(status);
}

void OperationWatch::Cancel() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ended_, true)) return;
  Leave();
}

void OperationWatch::Send(const OperationStatus& status) {
  unsent_.reset();
  v1::WatchOperationResponse response;
  *response.mutable_operation() = ToProto(status);
  writer_->Send(response);
  if (!status.done()) return;
  ended_ = true;
  writer_->End(absl::OkStatus());
  Leave();
}

void OperationWatch::Leave() {
  if (!watch_.has_value()) return;
  service_.workers->Run([operations = service_.operations, watch = *watch_] { operations->Unwatch(watch); });
}

}  // namespace gatehouse
