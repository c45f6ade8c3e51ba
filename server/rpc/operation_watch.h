#ifndef GATEHOUSE_SERVER_RPC_OPERATION_WATCH_H_
#define GATEHOUSE_SERVER_RPC_OPERATION_WATCH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/service_context.h"
#include "server/serving/call.h"
#include "server/serving/operations.h"

namespace gatehouse {

// Feeds one WatchOperation stream.  A slow reader misses states in between, never the
// last.  Owned by the operation manager (through its callback) and the stream.
// Thread-safe.
class OperationWatch final : public Call, public std::enable_shared_from_this<OperationWatch> {
 public:
  static absl::StatusOr<std::shared_ptr<Call>> Start(const ServiceContext& service, const std::string& name,
                                                     std::shared_ptr<StreamWriter> writer);

  void Cancel() override;
  void Resume() override;

 private:
  OperationWatch(const ServiceContext& service, std::shared_ptr<StreamWriter> writer);

  void OnChanged(const OperationStatus& status);
  // Needs the lock.
  void Send(const OperationStatus& status);
  // Needs the lock.  Leaves the manager's list, from a worker: its callback may be what
  // is running now.
  void Leave();

  const ServiceContext& service_;
  const std::shared_ptr<StreamWriter> writer_;

  std::mutex mutex_;
  std::optional<uint64_t> watch_;  // known once Watch has returned
  std::optional<OperationStatus> unsent_;
  bool ended_ = false;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_OPERATION_WATCH_H_
