#include "tests/client/fake_server.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>

#include "gatehouse/v1/analysis.grpc.pb.h"
#include "gatehouse/v1/errors.pb.h"
#include "gatehouse/v1/generation.grpc.pb.h"
#include "gatehouse/v1/models.grpc.pb.h"
#include "gatehouse/v1/operations.grpc.pb.h"
#include "gatehouse/v1/scoring.grpc.pb.h"

namespace gatehouse::testing {
namespace {

grpc::Status ToGrpc(const FakeStatus& status) {
  if (status.code == 0) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code);
  if (status.reason.empty()) return {code, status.message};
  v1::ErrorInfo info;
  info.set_reason(status.reason);
  info.set_domain("gatehouse");
  v1::ErrorStatus details;
  details.set_code(status.code);
  details.set_message(status.message);
  auto& any = *details.add_details();
  any.set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  any.set_value(info.SerializeAsString());
  return {code, status.message, details.SerializeAsString()};
}

template <typename Handler, typename Request, typename Response>
grpc::Status Unary(const Handler& handler, const Request& request, Response& response) {
  if (!handler) return {grpc::StatusCode::UNIMPLEMENTED, "not faked"};
  return ToGrpc(handler(request, response));
}

template <typename Handler, typename Request, typename Response>
grpc::Status Streaming(const Handler& handler, grpc::ServerContext* context, const Request& request,
                       grpc::ServerWriter<Response>* writer) {
  if (!handler) return {grpc::StatusCode::UNIMPLEMENTED, "not faked"};
  return ToGrpc(handler(request, FakeStream<Response>{[&](const Response& response) { return writer->Write(response); },
                                                      [&] { return context->IsCancelled(); }}));
}

}  // namespace

struct FakeServer::Services final : v1::GenerationService::Service,
                                    v1::ScoringService::Service,
                                    v1::AnalysisService::Service,
                                    v1::ModelService::Service,
                                    v1::OperationService::Service {
  using Context = grpc::ServerContext;

  void Hear(const Context& context, const std::string& call) const {
    const auto found = context.client_metadata().find("gatehouse-replica");
    if (handlers.asked && found != context.client_metadata().end()) {
      handlers.asked(call, std::string(found->second.data(), found->second.size()));
    }
  }

  grpc::Status Generate(Context* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    return Streaming(handlers.generate, context, *request, writer);
  }
  grpc::Status Score(Context* context, const v1::ScoreRequest* request,
                     grpc::ServerWriter<v1::ScoreResponse>* writer) override {
    return Streaming(handlers.score, context, *request, writer);
  }
  grpc::Status ScoreNonlinearity(Context* context, const v1::ScoreNonlinearityRequest* request,
                                 grpc::ServerWriter<v1::ScoreNonlinearityResponse>* writer) override {
    return Streaming(handlers.nonlinearity, context, *request, writer);
  }
  grpc::Status TraceConsensus(Context* context, const v1::TraceConsensusRequest* request,
                              grpc::ServerWriter<v1::TraceConsensusResponse>* writer) override {
    return Streaming(handlers.consensus, context, *request, writer);
  }
  grpc::Status ListModels(Context*, const v1::ListModelsRequest* request, v1::ListModelsResponse* response) override {
    return Unary(handlers.list_models, *request, *response);
  }
  grpc::Status DescribeModel(Context*, const v1::DescribeModelRequest* request,
                             v1::DescribeModelResponse* response) override {
    return Unary(handlers.describe_model, *request, *response);
  }
  grpc::Status SelectCalibration(Context*, const v1::SelectCalibrationRequest* request,
                                 v1::SelectCalibrationResponse* response) override {
    return Unary(handlers.select_calibration, *request, *response);
  }
  grpc::Status UploadCorpus(Context* context, grpc::ServerReader<v1::UploadCorpusRequest>* reader,
                            v1::UploadCorpusResponse* response) override {
    Hear(*context, "UploadCorpus");
    if (!handlers.upload_corpus) return {grpc::StatusCode::UNIMPLEMENTED, "not faked"};
    return ToGrpc(
        handlers.upload_corpus([&](v1::UploadCorpusRequest& chunk) { return reader->Read(&chunk); }, *response));
  }
  grpc::Status StartOperation(Context* context, const v1::StartOperationRequest* request,
                              v1::StartOperationResponse* response) override {
    Hear(*context, "StartOperation");
    return Unary(handlers.start_operation, *request, *response);
  }
  grpc::Status GetOperation(Context* context, const v1::GetOperationRequest* request,
                            v1::GetOperationResponse* response) override {
    Hear(*context, "GetOperation");
    return Unary(handlers.get_operation, *request, *response);
  }
  grpc::Status WatchOperation(Context* context, const v1::WatchOperationRequest* request,
                              grpc::ServerWriter<v1::WatchOperationResponse>* writer) override {
    Hear(*context, "WatchOperation");
    return Streaming(handlers.watch_operation, context, *request, writer);
  }
  grpc::Status CancelOperation(Context* context, const v1::CancelOperationRequest* request,
                               v1::CancelOperationResponse* response) override {
    Hear(*context, "CancelOperation");
    return Unary(handlers.cancel_operation, *request, *response);
  }
  grpc::Status ListOperations(Context* context, const v1::ListOperationsRequest* request,
                              v1::ListOperationsResponse* response) override {
    Hear(*context, "ListOperations");
    return Unary(handlers.list_operations, *request, *response);
  }
  grpc::Status FetchResult(Context* context, const v1::FetchResultRequest* request,
                           grpc::ServerWriter<v1::FetchResultResponse>* writer) override {
    Hear(*context, "FetchResult");
    return Streaming(handlers.fetch_result, context, *request, writer);
  }
  grpc::Status GetReport(Context* context, const v1::GetReportRequest* request,
                         grpc::ServerWriter<v1::GetReportResponse>* writer) override {
    Hear(*context, "GetReport");
    return Streaming(handlers.get_report, context, *request, writer);
  }

  FakeHandlers handlers;
  std::unique_ptr<grpc::Server> server;
};

FakeServer::FakeServer(FakeHandlers handlers) : services_(std::make_unique<Services>()) {
  services_->handlers = std::move(handlers);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::GenerationService::Service*>(services_.get()));
  builder.RegisterService(static_cast<v1::ScoringService::Service*>(services_.get()));
  builder.RegisterService(static_cast<v1::AnalysisService::Service*>(services_.get()));
  builder.RegisterService(static_cast<v1::ModelService::Service*>(services_.get()));
  builder.RegisterService(static_cast<v1::OperationService::Service*>(services_.get()));
  services_->server = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

FakeServer::~FakeServer() { services_->server->Shutdown(std::chrono::system_clock::now()); }

}  // namespace gatehouse::testing
