#ifndef GATEHOUSE_SERVER_RPC_CORPUS_RECEIVER_H_
#define GATEHOUSE_SERVER_RPC_CORPUS_RECEIVER_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "absl/status/status.h"
#include "server/rpc/call_slots.h"
#include "server/rpc/service_context.h"
#include "server/serving/operations.h"

namespace gatehouse {

// One upload: reads a message, lets a worker append it to the file, reads the next.
// Deletes itself when done.
class CorpusReceiver final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  static CorpusReceiver* Open(const ServiceContext& service, grpc::CallbackServerContext* context,
                              grpc::ByteBuffer* reply);

  void OnReadDone(bool ok) override;
  void OnSendInitialMetadataDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  CorpusReceiver(const ServiceContext& service, grpc::ByteBuffer* reply, CallSlots::Slot slot)
      : service_(service), reply_(reply), slot_(std::move(slot)) {}

  absl::Status Append();
  absl::Status Complete();

  const ServiceContext& service_;
  grpc::ByteBuffer* const reply_;  // gRPC's, until Finish
  const CallSlots::Slot slot_;
  // One operation is in flight at a time, so these need no lock.
  grpc::ByteBuffer message_;
  std::unique_ptr<CorpusUpload> upload_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_CORPUS_RECEIVER_H_
