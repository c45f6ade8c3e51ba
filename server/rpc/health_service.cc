#include "server/rpc/health_service.h"

#include <chrono>
#include <utility>

#include "server/base/strings.h"
#include "server/rpc/call_runner.h"

namespace gatehouse {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::string_view kLiveness = "liveness";
constexpr std::chrono::seconds kWatchInterval{1};

}  // namespace

// One Watch stream.  Sends a status when it differs from the last one sent.
class HealthService::Watcher final : public Call, public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(HealthService& health, std::string name, std::shared_ptr<StreamWriter> writer)
      : health_(health), name_(std::move(name)), writer_(std::move(writer)) {}

  void Update() {
    const std::lock_guard lock(mutex_);
    const ServingStatus status = health_.StatusOf(name_);
    if (sent_ == status || !writer_->CanAccept()) return;
    sent_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    writer_->Send(response);
  }
  void End() { writer_->End(absl::UnavailableError("the server is shutting down")); }

  void Cancel() override {
    const std::lock_guard lock(health_.mutex_);
    health_.watchers_.erase(shared_from_this());
  }
  void Resume() override { Update(); }

 private:
  HealthService& health_;
  const std::string name_;
  const std::shared_ptr<StreamWriter> writer_;
  std::mutex mutex_;
  std::optional<ServingStatus> sent_;
};

HealthService::HealthService(const ServiceContext& service, std::set<std::string> names, std::function<bool()> alive)
    : service_(service), names_(std::move(names)), alive_(std::move(alive)), thread_([this] { Loop(); }) {}

HealthService::~HealthService() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HealthService::StopServing() {
  {
    const std::lock_guard lock(mutex_);
    serving_ = false;
  }
  NotifyWatchers();
}

void HealthService::EndWatches() {
  std::set<std::shared_ptr<Watcher>> watchers;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    watchers.swap(watchers_);
  }
  changed_.notify_all();
  for (const auto& watcher : watchers) watcher->End();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                               grpc::ByteBuffer* reply) {
  // Answered here and not by a worker: a probe is to be fast however busy those are.
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  HealthCheckRequest request;
  absl::Status status = ParseMessage(*bytes, request);
  if (status.ok()) {
    HealthCheckResponse response;
    response.set_status(StatusOf(request.service()));
    if (response.status() == HealthCheckResponse::SERVICE_UNKNOWN) {
      status = absl::NotFoundError("no service of this name");
    } else {
      *reply = SerializeMessage(response);
    }
  }
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(grpc::CallbackServerContext* context,
                                                                 const grpc::ByteBuffer* bytes) {
  return RunStream<HealthCheckRequest>(
      service_, /*method=*/"", context, bytes,
      [this](const HealthCheckRequest& request,
             const std::shared_ptr<StreamWriter>& writer) -> absl::StatusOr<std::shared_ptr<Call>> {
        auto watcher = std::make_shared<Watcher>(*this, request.service(), writer);
        watcher->Update();
        const std::lock_guard lock(mutex_);
        if (closing_) return absl::UnavailableError("the server is shutting down");
        watchers_.insert(watcher);
        return std::shared_ptr<Call>(watcher);
      });
}

HealthService::ServingStatus HealthService::StatusOf(std::string_view name) const {
  if (!name.empty() && names_.count(std::string(name)) == 0) return HealthCheckResponse::SERVICE_UNKNOWN;
  if (!alive_()) return HealthCheckResponse::NOT_SERVING;
  const std::lock_guard lock(mutex_);
  return serving_ || name == kLiveness ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::NotifyWatchers() {
  std::set<std::shared_ptr<Watcher>> watchers;
  {
    const std::lock_guard lock(mutex_);
    watchers = watchers_;
  }
  for (const auto& watcher : watchers) watcher->Update();
}

void HealthService::Loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kWatchInterval, [this] { return closing_; })) return;
    }
    NotifyWatchers();
  }
}

}  // namespace gatehouse
