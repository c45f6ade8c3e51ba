#ifndef GATEHOUSE_TESTS_CLIENT_FAKE_SERVER_H_
#define GATEHOUSE_TESTS_CLIENT_FAKE_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gatehouse/v1/analysis.pb.h"
#include "gatehouse/v1/generation.pb.h"
#include "gatehouse/v1/models.pb.h"
#include "gatehouse/v1/operations.pb.h"
#include "gatehouse/v1/scoring.pb.h"

namespace gatehouse::testing {

// How a fake call ends.
struct FakeStatus {
  int code = 0;  // of grpc::StatusCode
  std::string message = {};
  std::string reason = {};  // sent as a google.rpc.ErrorInfo where not empty
};

// What a streaming handler answers with.
template <typename Response>
struct FakeStream {
  std::function<bool(const Response&)> write;
  std::function<bool()> cancelled;
};

// What the fake services do.  A handler that is not set answers UNIMPLEMENTED.
struct FakeHandlers {
  template <typename Request, typename Response>
  using Unary = std::function<FakeStatus(const Request&, Response&)>;
  template <typename Request, typename Response>
  using Streaming = std::function<FakeStatus(const Request&, const FakeStream<Response>&)>;

  Streaming<v1::GenerateRequest, v1::GenerateResponse> generate;
  Streaming<v1::ScoreRequest, v1::ScoreResponse> score;
  Streaming<v1::ScoreNonlinearityRequest, v1::ScoreNonlinearityResponse> nonlinearity;
  Streaming<v1::TraceConsensusRequest, v1::TraceConsensusResponse> consensus;
  Unary<v1::ListModelsRequest, v1::ListModelsResponse> list_models;
  Unary<v1::DescribeModelRequest, v1::DescribeModelResponse> describe_model;
  Unary<v1::SelectCalibrationRequest, v1::SelectCalibrationResponse> select_calibration;
  // Hears the chunks in turn; false from `more` at the end.
  std::function<FakeStatus(const std::function<bool(v1::UploadCorpusRequest&)>& more, v1::UploadCorpusResponse&)>
      upload_corpus;
  Unary<v1::StartOperationRequest, v1::StartOperationResponse> start_operation;
  Unary<v1::GetOperationRequest, v1::GetOperationResponse> get_operation;
  Streaming<v1::WatchOperationRequest, v1::WatchOperationResponse> watch_operation;
  Unary<v1::CancelOperationRequest, v1::CancelOperationResponse> cancel_operation;
  Unary<v1::ListOperationsRequest, v1::ListOperationsResponse> list_operations;
  Streaming<v1::FetchResultRequest, v1::FetchResultResponse> fetch_result;
  Streaming<v1::GetReportRequest, v1::GetReportResponse> get_report;
  // Hears which calls of OperationService say which replica they are for.
  std::function<void(const std::string& call, const std::string& replica)> asked;
};

// A server of the Gatehouse services on a free port of the loopback, without any of the
// real server's code.
class FakeServer {
 public:
  explicit FakeServer(FakeHandlers handlers);
  ~FakeServer();

  const std::string& address() const { return address_; }

 private:
  struct Services;
  std::unique_ptr<Services> services_;
  std::string address_;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_CLIENT_FAKE_SERVER_H_
