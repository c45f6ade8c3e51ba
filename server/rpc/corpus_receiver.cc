#include "server/rpc/corpus_receiver.h"

#include <utility>

#include "gatehouse/v1/operations.pb.h"
#include "server/base/status_macros.h"
#include "server/rpc/call_runner.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/task_threads.h"
#include "server/rpc/wire.h"

namespace gatehouse {

CorpusReceiver* CorpusReceiver::Open(const ServiceContext& service, grpc::CallbackServerContext*,
                                     grpc::ByteBuffer* reply) {
  CallSlots::Slot slot = service.slots->TryTake();
  const bool refused = slot == nullptr;
  auto* const receiver = new CorpusReceiver(service, reply, std::move(slot));  // gRPC owns it until OnDone
  if (refused) {
    receiver->Finish(ToGrpcStatus(TooManyCalls(*service.slots)));
  } else {
    receiver->StartRead(&receiver->message_);
  }
  return receiver;
}

void CorpusReceiver::OnReadDone(bool ok) {
  if (!ok) {
    // The client has sent all, or is gone: a read tells the two not apart, a write does.
    StartSendInitialMetadata();
    return;
  }
  service_.workers->Run([this] {
    const absl::Status status = Append();
    if (status.ok()) {
      StartRead(&message_);
    } else {
      upload_.reset();
      Finish(ToGrpcStatus(status));
    }
  });
}

void CorpusReceiver::OnSendInitialMetadataDone(bool ok) {
  if (!ok) {
    Finish(ToGrpcStatus(absl::CancelledError("the caller cancelled")));
    return;
  }
  service_.workers->Run([this] { Finish(ToGrpcStatus(Complete())); });
}

absl::Status CorpusReceiver::Append() {
  v1::UploadCorpusRequest request;
  GH_RETURN_IF_ERROR(ParseMessage(message_, request));
  if (upload_ == nullptr) {
    GH_ASSIGN_OR_RETURN(upload_, service_.operations->BeginUpload(request.display_name()));
  }
  return upload_->Append(request.data());
}

absl::Status CorpusReceiver::Complete() {
  if (upload_ == nullptr) return absl::InvalidArgumentError("data is empty");
  GH_ASSIGN_OR_RETURN(const CorpusUpload::Corpus corpus, upload_->Finish());
  v1::UploadCorpusResponse response;
  response.set_corpus(corpus.name);
  response.set_size_bytes(corpus.size_bytes);
  response.set_replica(service_.replica);
  *reply_ = SerializeMessage(response);
  return absl::OkStatus();
}

}  // namespace gatehouse
