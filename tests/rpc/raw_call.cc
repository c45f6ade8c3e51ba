#include "tests/rpc/raw_call.h"

#include <grpcpp/generic/generic_stub.h>

namespace gatehouse::testing {
namespace {

// Waits for the one operation in flight.
bool Next(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  (void)buffer.Dump(&slices);
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

RawReply RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::vector<std::string>& requests) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* const tag = &context;
  RawReply reply;
  call->StartCall(tag);
  bool ok = Next(queue);
  for (const std::string& request : requests) {
    if (!ok) break;
    const grpc::Slice slice(request);
    call->Write(grpc::ByteBuffer(&slice, 1), tag);
    ok = Next(queue);
  }
  if (ok) {
    call->WritesDone(tag);
    (void)Next(queue);
  }
  while (true) {
    grpc::ByteBuffer message;
    call->Read(&message, tag);
    if (!Next(queue)) break;
    reply.messages.push_back(Bytes(message));
  }
  call->Finish(&reply.status, tag);
  (void)Next(queue);
  return reply;
}

}  // namespace gatehouse::testing
