#include <algorithm>
#include <memory>
#include <utility>

#include "gatehouse/v1/operations.grpc.pb.h"
#include "server/base/status_macros.h"
#include "server/rpc/call_runner.h"
#include "server/rpc/corpus_receiver.h"
#include "server/rpc/operation_watch.h"
#include "server/rpc/pulled_stream.h"
#include "server/rpc/services.h"
#include "server/rpc/translate.h"
#include "server/serving/operations.h"

namespace gatehouse {
namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;

template <typename Response>
absl::StatusOr<Response> OperationResponse(const absl::StatusOr<OperationStatus>& status) {
  if (!status.ok()) return status.status();
  Response response;
  *response.mutable_operation() = ToProto(*status);
  return response;
}

using Service = v1::OperationService;
using OperationBase = Service::WithRawCallbackMethod_UploadCorpus<
    Service::WithRawCallbackMethod_StartOperation<Service::WithRawCallbackMethod_GetOperation<
        Service::WithRawCallbackMethod_WatchOperation<Service::WithRawCallbackMethod_CancelOperation<
            Service::WithRawCallbackMethod_ListOperations<Service::WithRawCallbackMethod_FetchResult<
                Service::WithRawCallbackMethod_GetReport<Service::Service>>>>>>>>;

class Operations final : public OperationBase {
 public:
  explicit Operations(const ServiceContext& service) : service_(service) {}

  grpc::ServerReadReactor<grpc::ByteBuffer>* UploadCorpus(grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* reply) override {
    return CorpusReceiver::Open(service_, context, reply);
  }

  grpc::ServerUnaryReactor* StartOperation(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                           grpc::ByteBuffer* reply) override {
    return RunUnary<v1::StartOperationRequest>(
        service_, context, bytes, reply,
        [this](const v1::StartOperationRequest& request) -> absl::StatusOr<v1::StartOperationResponse> {
          GH_ASSIGN_OR_RETURN(OperationSpec spec, FromProto(request));
          return OperationResponse<v1::StartOperationResponse>(
              service_.operations->Start(request.model(), std::move(spec)));
        });
  }

  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                         grpc::ByteBuffer* reply) override {
    return RunUnary<v1::GetOperationRequest>(
        service_, context, bytes, reply, [this](const v1::GetOperationRequest& request) {
          return OperationResponse<v1::GetOperationResponse>(service_.operations->Get(request.name()));
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchOperation(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* bytes) override {
    return RunStream<v1::WatchOperationRequest>(
        service_, /*method=*/"", context, bytes,
        [this](const v1::WatchOperationRequest& request, const std::shared_ptr<StreamWriter>& writer) {
          return OperationWatch::Start(service_, request.name(), writer);
        });
  }

  grpc::ServerUnaryReactor* CancelOperation(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                            grpc::ByteBuffer* reply) override {
    return RunUnary<v1::CancelOperationRequest>(
        service_, context, bytes, reply, [this](const v1::CancelOperationRequest& request) {
          return OperationResponse<v1::CancelOperationResponse>(service_.operations->Cancel(request.name()));
        });
  }

  grpc::ServerUnaryReactor* ListOperations(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                           grpc::ByteBuffer* reply) override {
    return RunUnary<v1::ListOperationsRequest>(
        service_, context, bytes, reply,
        [this](const v1::ListOperationsRequest& request) -> absl::StatusOr<v1::ListOperationsResponse> {
          const uint32_t size = request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxPage);
          GH_ASSIGN_OR_RETURN(OperationManager::Page page,
                              service_.operations->List(static_cast<int>(size), request.page_token()));
          v1::ListOperationsResponse response;
          for (const OperationStatus& status : page.operations) *response.add_operations() = ToProto(status);
          response.set_next_page_token(std::move(page.next_page_token));
          return response;
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchResult(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* bytes) override {
    return RunStream<v1::FetchResultRequest>(
        service_, /*method=*/"", context, bytes,
        [this](const v1::FetchResultRequest& request,
               const std::shared_ptr<StreamWriter>& writer) -> absl::StatusOr<std::shared_ptr<Call>> {
          GH_ASSIGN_OR_RETURN(const std::string path, service_.operations->ResultPath(request.name(), request.file()));
          GH_ASSIGN_OR_RETURN(PulledStream::SendNext chunks, FileChunks(path));
          return PulledStream::Start(*service_.workers, std::move(chunks), writer);
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetReport(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* bytes) override {
    return RunStream<v1::GetReportRequest>(
        service_, /*method=*/"", context, bytes,
        [this](const v1::GetReportRequest& request,
               const std::shared_ptr<StreamWriter>& writer) -> absl::StatusOr<std::shared_ptr<Call>> {
          GH_ASSIGN_OR_RETURN(Report report, service_.operations->ReadReport(request.name()));
          return PulledStream::Start(*service_.workers, ReportParts(std::move(report)), writer);
        });
  }

 private:
  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeOperationService(const ServiceContext& service) {
  return std::make_unique<Operations>(service);
}

}  // namespace gatehouse
