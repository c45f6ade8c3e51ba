#include "server/rpc/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <vector>

#include "server/base/listen_address.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/call_slots.h"
#include "server/rpc/health_service.h"
#include "server/rpc/service_context.h"
#include "server/rpc/services.h"
#include "server/rpc/task_threads.h"
#include "server/rpc/wire.h"
#include "server/serving/model_catalog.h"
#include "server/serving/scheduler.h"

namespace gatehouse {
namespace {

// Tokenising and files; the engine has threads of its own.
constexpr int kWorkers = 4;
// Reflection is gRPC's own synchronous service, which takes a thread a stream.
constexpr int kMaxGrpcThreads = 64;
constexpr int kMaxReplyBytes = 4 << 20;  // what clients accept by default

class Server final : public RpcServer {
 public:
  Server(const Backend& backend, const RpcServerOptions& options)
      : options_(options), slots_(options.max_calls), workers_(kWorkers) {
    context_.catalog = backend.catalog;
    context_.scheduler = backend.scheduler;
    context_.operations = backend.operations;
    context_.observer = backend.observer;
    context_.workers = &workers_;
    context_.slots = &slots_;
    context_.outbox = options.outbox;
    context_.replica = options.replica;
  }
  ~Server() override { Shutdown(absl::InfinitePast()); }

  absl::Status Listen();

  int port() const override { return port_; }
  std::shared_ptr<grpc::Channel> InProcessChannel() override { return server_->InProcessChannel({}); }
  int calls_in_work() const override { return slots_.taken(); }
  void StopServing() override { health_->StopServing(); }
  void Shutdown(absl::Time deadline) override {
    if (server_ == nullptr) return;
    health_->StopServing();
    health_->EndWatches();
    server_->Shutdown(absl::ToChronoTime(deadline));
  }

 private:
  std::set<std::string> HealthNames() const;
  void Configure(grpc::ServerBuilder& builder) const;

  const RpcServerOptions options_;
  ServiceContext context_;
  CallSlots slots_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<HealthService> health_;
  int port_ = 0;
  TaskThreads workers_;  // its tasks touch all of the above
  std::unique_ptr<grpc::Server> server_;
};

std::set<std::string> Server::HealthNames() const {
  std::set<std::string> names = {"liveness",
                                 "readiness",
                                 "grpc.health.v1.Health",
                                 "gatehouse.v1.GenerationService",
                                 "gatehouse.v1.ScoringService",
                                 "gatehouse.v1.AnalysisService",
                                 "gatehouse.v1.ModelService",
                                 "gatehouse.v1.OperationService"};
  for (const ServedModel* model : context_.catalog->models()) names.insert(model->name);
  return names;
}

void Server::Configure(grpc::ServerBuilder& builder) const {
  builder.SetMaxReceiveMessageSize(options_.max_request_bytes);
  builder.SetMaxSendMessageSize(kMaxReplyBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options_.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options_.min_ping_interval)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options_.keepalive_interval)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options_.keepalive_timeout)));
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("gatehouse");
  quota.SetMaxThreads(kMaxGrpcThreads);
  builder.SetResourceQuota(quota);
}

absl::Status Server::Listen() {
  GH_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(options_.listen));
  Scheduler& scheduler = *context_.scheduler;
  health_ = std::make_unique<HealthService>(
      context_, HealthNames(), [&scheduler, limit = options_.watchdog] { return scheduler.SinceHeartbeat() <= limit; });
  services_.push_back(MakeGenerationService(context_));
  services_.push_back(MakeScoringService(context_));
  services_.push_back(MakeAnalysisService(context_));
  services_.push_back(MakeModelService(context_));
  services_.push_back(MakeOperationService(context_));

  grpc::ServerBuilder builder;
  Configure(builder);
  for (const auto& service : services_) builder.RegisterService(service.get());
  builder.RegisterService(health_.get());
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port_);
  server_ = builder.BuildAndStart();
  if (server_ != nullptr && port_ != 0) return absl::OkStatus();
  // gRPC does not say why: a socket of our own does.
  GH_ASSIGN_OR_RETURN(const int socket, OpenListener(address));
  close(socket);
  return absl::UnavailableError(StrCat("cannot listen on ", address.ToString()));
}

// Once in a process, before the first server.
void PrepareGrpc() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // It would log a line for every message that a client gets wrong; the client is told.
    google::protobuf::SetLogHandler(nullptr);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const Backend& backend, const RpcServerOptions& options) {
  PrepareGrpc();
  auto server = std::make_unique<Server>(backend, options);
  GH_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace gatehouse
