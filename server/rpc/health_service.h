#ifndef GATEHOUSE_SERVER_RPC_HEALTH_SERVICE_H_
#define GATEHOUSE_SERVER_RPC_HEALTH_SERVICE_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/service_context.h"

namespace gatehouse {

// grpc.health.v1.Health.  Names: "" (the server), each service's full name, each model's
// name, `readiness`, and `liveness`.  All but `liveness` are SERVING until StopServing;
// all are NOT_SERVING while the engine's thread hangs, which a probe of `liveness` turns
// into a restart.  Never waits for the engine.  Thread-safe.
class HealthService final
    : public grpc::health::v1::Health::WithRawCallbackMethod_Check<
          grpc::health::v1::Health::WithRawCallbackMethod_Watch<grpc::health::v1::Health::Service>> {
 public:
  // `alive` says whether the engine's thread goes round; asked at each check, and each
  // second for watchers.
  HealthService(const ServiceContext& service, std::set<std::string> names, std::function<bool()> alive);
  ~HealthService() override;

  // Everything but `liveness` is NOT_SERVING from now on.
  void StopServing();
  // Ends all watches.
  void EndWatches();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes) override;

 private:
  using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Watcher;

  // SERVICE_UNKNOWN for a name it does not know.
  ServingStatus StatusOf(std::string_view name) const;
  void NotifyWatchers();
  void Loop();

  const ServiceContext& service_;
  const std::set<std::string> names_;
  const std::function<bool()> alive_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = true;
  bool closing_ = false;
  std::set<std::shared_ptr<Watcher>> watchers_;
  std::thread thread_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_HEALTH_SERVICE_H_
