#ifndef GATEHOUSE_SERVER_RPC_STREAM_WRITER_H_
#define GATEHOUSE_SERVER_RPC_STREAM_WRITER_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/rpc/call_slots.h"
#include "server/serving/call.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace gatehouse {

// How much may wait for a slow reader before the call pauses.
struct OutboxLimits {
  size_t bytes = size_t{1} << 20;
  size_t messages = 1024;
  // How long what is left may take to be read once the call has ended.
  absl::Duration linger = absl::Seconds(60);
};

// One server-streaming call: messages go in from the scheduler's thread and out to the
// client, one write at a time.  What waits is bounded: past the limit CanAccept turns
// false, and the Call is resumed when half of it has been read.
//
// Nothing is sent, not even initial metadata, before the first message.  The client's
// cancelling (or its deadline) ends the stream at once and cancels the Call; whatever the
// Call still sends is dropped.  So completion and cancellation each end the stream, the
// first one wins, and each of gRPC's operations is started by exactly one thread: the one
// that took it from NextStep.
//
// Owned by gRPC until the stream is done, and by whoever holds the pointer.  Thread-safe.
class StreamWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public std::enable_shared_from_this<StreamWriter> {
 public:
  // `slot` is held until the stream is done and nobody holds the writer.
  static std::shared_ptr<StreamWriter> Open(grpc::CallbackServerContext* context, const OutboxLimits& limits,
                                            CallSlots::Slot slot);

  // When the client gives up.
  absl::Time deadline() const { return deadline_; }
  bool cancelled() const;

  // The call that feeds this stream.  Once, after it was started.
  void Attach(std::shared_ptr<Call> call);

  bool CanAccept() const;
  void Send(const google::protobuf::Message& message);
  // After what was sent.  The first call counts.
  void End(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Step { kNone, kWrite, kFinish };

  StreamWriter(grpc::CallbackServerContext* context, const OutboxLimits& limits, CallSlots::Slot slot);

  // What gRPC is to do next.  Needs the lock; the caller then calls Do without it.
  Step NextStep();
  void Do(Step step);
  // Gives up a client that does not read the rest in time.
  void StartLinger();
  void GiveUp();

  grpc::CallbackServerContext* const context_;  // valid until OnDone
  const OutboxLimits limits_;
  const absl::Time deadline_;
  const CallSlots::Slot slot_;

  mutable std::mutex mutex_;
  std::shared_ptr<StreamWriter> self_;  // gRPC's reference, until OnDone
  std::shared_ptr<Call> call_;          // until the end
  std::deque<grpc::ByteBuffer> waiting_;
  size_t waiting_bytes_ = 0;  // with the one being written
  grpc::ByteBuffer writing_;  // touched by the owner of the write only
  size_t writing_bytes_ = 0;
  bool write_in_flight_ = false;
  bool finishing_ = false;
  bool giving_up_ = false;
  bool full_ = false;
  bool resume_missed_ = false;  // it was due before Attach
  bool cancelled_ = false;
  std::optional<absl::Status> end_;
  std::optional<grpc::Alarm> linger_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_STREAM_WRITER_H_
