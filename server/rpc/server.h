#ifndef GATEHOUSE_SERVER_RPC_SERVER_H_
#define GATEHOUSE_SERVER_RPC_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/stream_writer.h"

namespace grpc {
class Channel;
}

namespace gatehouse {

class ModelCatalog;
class Observer;
class OperationManager;
class Scheduler;

struct RpcServerOptions {
  std::string listen = "127.0.0.1:50151";  // HOST:PORT; port 0 takes a free one
  std::string replica = "local";
  // Largest request taken; gRPC refuses a larger one with ResourceExhausted before any
  // handler sees it.
  int max_request_bytes = 8 << 20;
  // Streams of one connection; a client's further ones wait at the client.
  int max_concurrent_streams = 512;
  // Calls in work over all connections; one more is refused with ResourceExhausted.
  int max_calls = 1024;
  OutboxLimits outbox;
  // Clients may send keepalive pings this often, also while no call is open.
  absl::Duration min_ping_interval = absl::Seconds(10);
  // The server pings silent clients, to notice those that vanished.
  absl::Duration keepalive_interval = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  // The engine's thread counts as hanging when it has not gone round for this long.
  absl::Duration watchdog = absl::Seconds(60);
};

// The gRPC server: all services, health and reflection.  Owned by main; thread-safe.
class RpcServer {
 public:
  // What the services work with; all of it outlives the server.
  struct Backend {
    const ModelCatalog* catalog = nullptr;
    Scheduler* scheduler = nullptr;
    OperationManager* operations = nullptr;
    Observer* observer = nullptr;
  };

  // Listens at once.  InvalidArgument, AlreadyExists or PermissionDenied where the address
  // cannot be listened on, saying why.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const Backend& backend, const RpcServerOptions& options);
  virtual ~RpcServer() = default;

  virtual int port() const = 0;
  // A channel to this server within the process, for as long as it serves.
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  // Calls whose handler is at work.
  virtual int calls_in_work() const = 0;

  // Health turns NOT_SERVING (liveness does not); calls are still served.
  virtual void StopServing() = 0;
  // Refuses new calls, lets running ones go on until `deadline`, then cancels them.
  // Returns when none is left.  Called by the destructor.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_SERVER_H_
