#ifndef GATEHOUSE_SERVER_RPC_SERVICE_CONTEXT_H_
#define GATEHOUSE_SERVER_RPC_SERVICE_CONTEXT_H_

#include <string>

#include "server/rpc/stream_writer.h"

namespace gatehouse {

class CallSlots;
class ModelCatalog;
class Observer;
class OperationManager;
class Scheduler;
class TaskThreads;

// What every service works with.  Owned by RpcServer, which outlives the services; what it
// points to is thread-safe.
struct ServiceContext {
  const ModelCatalog* catalog = nullptr;
  Scheduler* scheduler = nullptr;
  OperationManager* operations = nullptr;
  Observer* observer = nullptr;
  TaskThreads* workers = nullptr;
  CallSlots* slots = nullptr;
  OutboxLimits outbox;
  std::string replica;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_SERVICE_CONTEXT_H_
