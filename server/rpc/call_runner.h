#ifndef GATEHOUSE_SERVER_RPC_CALL_RUNNER_H_
#define GATEHOUSE_SERVER_RPC_CALL_RUNNER_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/call_slots.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/service_context.h"
#include "server/rpc/stream_writer.h"
#include "server/rpc/task_threads.h"
#include "server/rpc/translate.h"
#include "server/rpc/wire.h"
#include "server/serving/call.h"

namespace gatehouse {

// How calls are run: a worker reads the request and answers it, so that no thread of
// gRPC ever waits.

absl::Status TooManyCalls(const CallSlots& slots);
// Cancelled or DeadlineExceeded where nobody waits for the answer any more.
absl::Status CheckWanted(const StreamWriter& writer);

// A call with one answer: `body` makes a StatusOr<Response> of a Request.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* RunUnary(const ServiceContext& service, grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes, grpc::ByteBuffer* reply, Body body) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  CallSlots::Slot slot = service.slots->TryTake();
  if (slot == nullptr) {
    reactor->Finish(ToGrpcStatus(TooManyCalls(*service.slots)));
    return reactor;
  }
  // gRPC keeps `bytes` and `reply` until Finish.
  service.workers->Run([reactor, bytes, reply, slot = std::move(slot), body = std::move(body)] {
    Request request;
    absl::Status status = ParseMessage(*bytes, request);
    if (status.ok()) {
      const auto response = body(request);
      status = response.status();
      if (status.ok()) *reply = SerializeMessage(*response);
    }
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

// Counts a call that failed before the scheduler heard of it.
void ReportRefusal(const ServiceContext& service, std::string_view method, const std::string& model,
                   const absl::Status& status);

// A call answered by a stream: `start` takes a Request and the writer, and returns the
// StatusOr<shared_ptr<Call>> that feeds it.  `method` is what refusals are counted under;
// empty for calls that are not counted.
template <typename Request, typename Start>
grpc::ServerWriteReactor<grpc::ByteBuffer>* RunStream(const ServiceContext& service, std::string_view method,
                                                      grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* bytes, Start start) {
  CallSlots::Slot slot = service.slots->TryTake();
  const bool refused = slot == nullptr;
  std::shared_ptr<StreamWriter> writer = StreamWriter::Open(context, service.outbox, std::move(slot));
  StreamWriter* const reactor = writer.get();
  if (refused) {
    const absl::Status status = TooManyCalls(*service.slots);
    ReportRefusal(service, method, "", status);
    writer->End(status);
    return reactor;
  }
  // The stream may be done, and `bytes` gone, before a worker takes it up.
  service.workers->Run(
      [&service, method, writer = std::move(writer), bytes = grpc::ByteBuffer(*bytes), start = std::move(start)] {
        Request request;
        absl::Status status = CheckWanted(*writer);
        if (status.ok()) status = ParseMessage(bytes, request);
        if (!status.ok()) {
          ReportRefusal(service, method, "", status);
          writer->End(status);
          return;
        }
        absl::StatusOr<std::shared_ptr<Call>> call = start(request, writer);
        if (call.ok()) {
          writer->Attach(*std::move(call));
        } else {
          writer->End(call.status());
        }
      });
  return reactor;
}

// RunStream for a call of the scheduler: `submit` takes the translated request, its
// options and the writer.
template <typename Request, typename Submit>
grpc::ServerWriteReactor<grpc::ByteBuffer>* RunScheduled(const ServiceContext& service, std::string_view method,
                                                         grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* bytes, Submit submit) {
  auto start = [&service, method, submit = std::move(submit)](
                   const Request& proto,
                   const std::shared_ptr<StreamWriter>& writer) -> absl::StatusOr<std::shared_ptr<Call>> {
    auto request = FromProto(proto);
    if (!request.ok()) {
      ReportRefusal(service, method, proto.model(), request.status());
      return request.status();
    }
    CallOptions options;
    options.deadline = writer->deadline();
    return submit(*std::move(request), options, writer);
  };
  return RunStream<Request>(service, method, context, bytes, std::move(start));
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_CALL_RUNNER_H_
