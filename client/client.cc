#include "client/client.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/call_context.h"
#include "client/channel.h"
#include "client/errors.h"
#include "client/generation_stream.h"
#include "client/utf8.h"
#include "gatehouse/v1/analysis.grpc.pb.h"
#include "gatehouse/v1/generation.grpc.pb.h"
#include "gatehouse/v1/models.grpc.pb.h"
#include "gatehouse/v1/operations.grpc.pb.h"
#include "gatehouse/v1/scoring.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace gatehouse::client {
namespace {

constexpr int kUploadChunk = 256 << 10;
constexpr int kPageSize = 1000;
// A watch goes on through a short absence of its server, such as a restart.
constexpr std::array<int, 6> kReconnectMs = {100, 200, 500, 1000, 2000, 4000};

// What a request names, or else the options, says who is to answer it.
template <typename Request>
std::string ReplicaFor(const Request& request, const CallOptions& options) {
  if constexpr (requires { request.name(); }) return ReplicaOf(request.name());
  return options.replica;
}

absl::Time DeadlineOf(const CallOptions& options) { return absl::Now() + options.timeout; }

// Whether an operation's server is absent; behind a proxy another replica may answer for it,
// which knows less than was `heard` before.
bool IsAbsent(const absl::Status& status, bool heard) {
  const std::string reason = ErrorReason(status);
  return absl::IsUnavailable(status) || (heard && (reason == "OTHER_REPLICA" || reason == "OPERATION_NOT_FOUND"));
}

// Adds a piece of a table to a report: to its last table, or as a new one.  False where the
// columns are others.
bool AddPiece(v1::ReportTable piece, v1::Report& report) {
  const int tables = report.tables_size();
  if (tables == 0 || report.tables(tables - 1).name() != piece.name()) {
    *report.add_tables() = std::move(piece);
    return true;
  }
  v1::ReportTable& table = *report.mutable_tables(tables - 1);
  if (table.columns_size() != piece.columns_size()) return false;
  for (int i = 0; i < piece.columns_size(); ++i) {
    v1::ReportColumn& column = *table.mutable_columns(i);
    if (column.name() != piece.columns(i).name() || column.cells_case() != piece.columns(i).cells_case()) return false;
    if (column.has_numbers()) column.mutable_numbers()->MergeFrom(piece.columns(i).numbers());
    if (column.has_strings()) column.mutable_strings()->MergeFrom(piece.columns(i).strings());
  }
  return true;
}

class GrpcClient : public Client {
 public:
  explicit GrpcClient(const std::shared_ptr<grpc::Channel>& channel)
      : generation_(v1::GenerationService::NewStub(channel)),
        scoring_(v1::ScoringService::NewStub(channel)),
        analysis_(v1::AnalysisService::NewStub(channel)),
        models_(v1::ModelService::NewStub(channel)),
        operations_(v1::OperationService::NewStub(channel)),
        health_(grpc::health::v1::Health::NewStub(channel)) {}

  absl::StatusOr<v1::GenerationSummary> Generate(const v1::GenerateRequest& request, const GenerationEvents& events,
                                                 const CallOptions& options) override {
    return Stream<v1::GenerateResponse, v1::GenerationSummary>(
        *generation_, &v1::GenerationService::Stub::Generate, request, options,
        [&](const v1::GenerateResponse& response) { return TellGeneration(events, response); });
  }

  void StartGenerate(const v1::GenerateRequest& request, GenerationEvents events, GenerationEnd on_end,
                     const CallOptions& options) override {
    StartGenerationStream(*generation_, request, std::move(events), std::move(on_end), options);
  }

  absl::StatusOr<v1::ScoreSummary> Score(const v1::ScoreRequest& request,
                                         const std::function<bool(const v1::ScoredTokens&)>& on_tokens,
                                         const CallOptions& options,
                                         const std::function<bool(const v1::Activations&)>& on_activations) override {
    using Response = v1::ScoreResponse;
    return Stream<Response, v1::ScoreSummary>(*scoring_, &v1::ScoringService::Stub::Score, request, options,
                                              [&](const Response& response) {
                                                switch (response.event_case()) {
                                                  case Response::kTokens:
                                                    return Tell(on_tokens, response.tokens());
                                                  case Response::kActivations:
                                                    return Tell(on_activations, response.activations());
                                                  default:
                                                    return true;
                                                }
                                              });
  }

  absl::StatusOr<v1::AnalysisSummary> ScoreNonlinearity(const v1::ScoreNonlinearityRequest& request,
                                                        const NonlinearityEvents& events,
                                                        const CallOptions& options) override {
    return Analyse<v1::ScoreNonlinearityResponse>(&v1::AnalysisService::Stub::ScoreNonlinearity, request, events,
                                                  options);
  }

  absl::StatusOr<v1::AnalysisSummary> TraceConsensus(const v1::TraceConsensusRequest& request,
                                                     const ConsensusEvents& events,
                                                     const CallOptions& options) override {
    return Analyse<v1::TraceConsensusResponse>(&v1::AnalysisService::Stub::TraceConsensus, request, events, options);
  }

  absl::StatusOr<bool> CheckHealth(const std::string& name, const CallOptions& options) override {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(name);
    const auto response = Unary<grpc::health::v1::HealthCheckResponse>(*health_, &grpc::health::v1::Health::Stub::Check,
                                                                       request, options);
    if (!response.ok()) return response.status();
    return response->status() == grpc::health::v1::HealthCheckResponse::SERVING;
  }

  absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& options) override {
    return Unary<v1::ListModelsResponse>(*models_, &v1::ModelService::Stub::ListModels, v1::ListModelsRequest(),
                                         options);
  }

  absl::StatusOr<v1::DescribeModelResponse> DescribeModel(const std::string& model,
                                                          const CallOptions& options) override {
    v1::DescribeModelRequest request;
    request.set_model(model);
    return Unary<v1::DescribeModelResponse>(*models_, &v1::ModelService::Stub::DescribeModel, request, options);
  }

  absl::StatusOr<v1::CalibrationSummary> SelectCalibration(const std::string& model, const std::string& calibration,
                                                           const CallOptions& options) override {
    v1::SelectCalibrationRequest request;
    request.set_model(model);
    request.set_calibration(calibration);
    auto response =
        Unary<v1::SelectCalibrationResponse>(*models_, &v1::ModelService::Stub::SelectCalibration, request, options);
    if (!response.ok()) return response.status();
    return response->calibration();
  }

  absl::StatusOr<v1::UploadCorpusResponse> UploadCorpus(std::istream& text, const std::string& display_name,
                                                        const std::function<bool(uint64_t)>& on_progress,
                                                        const CallOptions& options) override;

  absl::StatusOr<v1::Operation> StartOperation(const v1::StartOperationRequest& request,
                                               const CallOptions& options) override {
    return OperationOf<v1::StartOperationResponse>(&v1::OperationService::Stub::StartOperation, request, options);
  }

  absl::StatusOr<v1::Operation> GetOperation(const std::string& name, const CallOptions& options) override {
    v1::GetOperationRequest request;
    request.set_name(name);
    return OperationOf<v1::GetOperationResponse>(&v1::OperationService::Stub::GetOperation, request, options);
  }

  absl::StatusOr<v1::Operation> CancelOperation(const std::string& name, const CallOptions& options) override {
    v1::CancelOperationRequest request;
    request.set_name(name);
    return OperationOf<v1::CancelOperationResponse>(&v1::OperationService::Stub::CancelOperation, request, options);
  }

  absl::StatusOr<v1::Operation> WatchOperation(const std::string& name,
                                               const std::function<bool(const v1::Operation&)>& on_change,
                                               const CallOptions& options) override;
  absl::StatusOr<std::vector<v1::Operation>> ListOperations(size_t limit, const CallOptions& options) override;
  absl::StatusOr<uint64_t> FetchResult(const std::string& name, const std::string& file, std::ostream& out,
                                       const CallOptions& options) override;
  absl::StatusOr<v1::Report> GetReport(const std::string& name, const CallOptions& options) override;

 private:
  template <typename Response, typename Stub, typename Method, typename Request>
  absl::StatusOr<Response> Unary(Stub& stub, Method method, const Request& request, const CallOptions& options) {
    if (absl::Status status = CheckUtf8(request); !status.ok()) return status;
    CallContext context(DeadlineOf(options), options.canceller, ReplicaFor(request, options));
    Response response;
    const grpc::Status status = (stub.*method)(context.get(), request, &response);
    if (!status.ok()) return ToStatus(status);
    return response;
  }

  template <typename Response, typename Method, typename Request>
  absl::StatusOr<v1::Operation> OperationOf(Method method, const Request& request, const CallOptions& options) {
    auto response = Unary<Response>(*operations_, method, request, options);
    if (!response.ok()) return response.status();
    return response->operation();
  }

  // Reads a stream to its end; `listen` hears every message and cancels by returning false.
  // The deadline stands for the options' timeout.
  template <typename Response, typename Stub, typename Method, typename Request, typename Listen>
  absl::Status ReadAll(Stub& stub, Method method, const Request& request, absl::Time deadline,
                       const CallOptions& options, const Listen& listen) {
    if (absl::Status status = CheckUtf8(request); !status.ok()) return status;
    CallContext context(deadline, options.canceller, ReplicaFor(request, options));
    const auto reader = (stub.*method)(context.get(), request);
    Response response;
    while (reader->Read(&response)) {
      if (!listen(response)) {
        context.Cancel();
        break;
      }
    }
    return ToStatus(reader->Finish());
  }

  // A stream that ends with a summary.
  template <typename Response, typename Summary, typename Stub, typename Method, typename Request, typename Listen>
  absl::StatusOr<Summary> Stream(Stub& stub, Method method, const Request& request, const CallOptions& options,
                                 const Listen& listen) {
    std::optional<Summary> summary;
    const absl::Status status =
        ReadAll<Response>(stub, method, request, DeadlineOf(options), options, [&](const Response& response) {
          if (response.has_summary()) summary = response.summary();
          return listen(response);
        });
    if (!status.ok()) return status;
    if (!summary.has_value()) return absl::InternalError("the server ended the answer without a summary");
    return *std::move(summary);
  }

  template <typename Response, typename Method, typename Request, typename Events>
  absl::StatusOr<v1::AnalysisSummary> Analyse(Method method, const Request& request, const Events& events,
                                              const CallOptions& options) {
    return Stream<Response, v1::AnalysisSummary>(*analysis_, method, request, options, [&](const Response& response) {
      if (response.has_start()) return Tell(events.on_start, response.start());
      if (response.has_tokens()) return Tell(events.on_tokens, response.tokens());
      return true;
    });
  }

  std::unique_ptr<v1::GenerationService::Stub> generation_;
  std::unique_ptr<v1::ScoringService::Stub> scoring_;
  std::unique_ptr<v1::AnalysisService::Stub> analysis_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::OperationService::Stub> operations_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

absl::StatusOr<v1::UploadCorpusResponse> GrpcClient::UploadCorpus(std::istream& text, const std::string& display_name,
                                                                  const std::function<bool(uint64_t)>& on_progress,
                                                                  const CallOptions& options) {
  CallContext context(DeadlineOf(options), options.canceller, options.replica);
  v1::UploadCorpusResponse response;
  const auto writer = operations_->UploadCorpus(context.get(), &response);
  // Abandons the call, so that the server keeps nothing of it.
  const auto give_up = [&](absl::Status status) {
    context.Cancel();
    (void)writer->Finish();
    return status;
  };
  v1::UploadCorpusRequest request;
  request.set_display_name(display_name);
  if (absl::Status status = CheckUtf8(request); !status.ok()) return give_up(status);
  Utf8Checker checker;
  const auto not_utf8 = [&] {
    return absl::InvalidArgumentError(absl::StrCat("the text is not valid UTF-8 at byte ", checker.invalid_offset()));
  };
  std::string chunk(kUploadChunk, '\0');
  uint64_t sent = 0;
  while (text.read(chunk.data(), kUploadChunk), text.gcount() > 0) {
    const std::string_view bytes(chunk.data(), static_cast<size_t>(text.gcount()));
    if (!checker.Feed(bytes)) return give_up(not_utf8());
    request.set_data(bytes.data(), bytes.size());
    if (!writer->Write(request)) break;  // the server has ended the call; Finish says why
    request.clear_display_name();
    sent += bytes.size();
    if (!Tell(on_progress, sent)) return give_up(absl::CancelledError("the upload was cancelled"));
  }
  if (text.bad()) return give_up(absl::DataLossError("the text could not be read to its end"));
  if (text.eof() && !checker.Finish()) return give_up(not_utf8());
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return ToStatus(status);
  return response;
}

absl::StatusOr<v1::Operation> GrpcClient::WatchOperation(const std::string& name,
                                                         const std::function<bool(const v1::Operation&)>& on_change,
                                                         const CallOptions& options) {
  v1::WatchOperationRequest request;
  request.set_name(name);
  const absl::Time deadline = DeadlineOf(options);
  Canceller never;
  CallOptions attempt = options;
  if (attempt.canceller == nullptr) attempt.canceller = &never;
  v1::Operation last;
  for (size_t failures = 0;; ++failures) {
    const absl::Status status =
        ReadAll<v1::WatchOperationResponse>(*operations_, &v1::OperationService::Stub::WatchOperation, request,
                                            deadline, attempt, [&](const v1::WatchOperationResponse& response) {
                                              failures = 0;
                                              last = response.operation();
                                              return Tell(on_change, last);
                                            });
    if (status.ok()) break;
    if (IsDone(last)) break;  // the connection broke after the last word
    if (!IsAbsent(status, !last.name().empty()) || failures == kReconnectMs.size()) return status;
    const absl::Duration pause = absl::Milliseconds(kReconnectMs[failures]);
    if (absl::Now() + pause >= deadline) return absl::DeadlineExceededError("the operation did not end in time");
    if (attempt.canceller->WaitFor(pause)) return absl::CancelledError("the watch was cancelled");
  }
  if (!IsDone(last)) return absl::InternalError("the server ended the watch before the operation ended");
  return last;
}

absl::StatusOr<std::vector<v1::Operation>> GrpcClient::ListOperations(size_t limit, const CallOptions& options) {
  CallOptions rest = options;
  const absl::Time deadline = DeadlineOf(options);
  std::vector<v1::Operation> operations;
  v1::ListOperationsRequest request;
  do {
    const size_t wanted = limit == 0 ? kPageSize : std::min<size_t>(limit - operations.size(), kPageSize);
    request.set_page_size(static_cast<uint32_t>(wanted));
    rest.timeout = deadline - absl::Now();
    auto page =
        Unary<v1::ListOperationsResponse>(*operations_, &v1::OperationService::Stub::ListOperations, request, rest);
    if (!page.ok()) return page.status();
    for (v1::Operation& operation : *page->mutable_operations()) operations.push_back(std::move(operation));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && (limit == 0 || operations.size() < limit));
  if (limit != 0 && operations.size() > limit) operations.resize(limit);
  return operations;
}

absl::StatusOr<uint64_t> GrpcClient::FetchResult(const std::string& name, const std::string& file, std::ostream& out,
                                                 const CallOptions& options) {
  v1::FetchResultRequest request;
  request.set_name(name);
  request.set_file(file);
  uint64_t size = 0;
  const absl::Status status = ReadAll<v1::FetchResultResponse>(
      *operations_, &v1::OperationService::Stub::FetchResult, request, DeadlineOf(options), options,
      [&](const v1::FetchResultResponse& response) {
        size += response.data().size();
        out.write(response.data().data(), static_cast<std::streamsize>(response.data().size()));
        return out.good();
      });
  if (!out.good()) return absl::DataLossError("the result could not be written");
  if (!status.ok()) return status;
  return size;
}

absl::StatusOr<v1::Report> GrpcClient::GetReport(const std::string& name, const CallOptions& options) {
  v1::GetReportRequest request;
  request.set_name(name);
  v1::Report report;
  bool whole = true;
  const absl::Status status =
      ReadAll<v1::GetReportResponse>(*operations_, &v1::OperationService::Stub::GetReport, request, DeadlineOf(options),
                                     options, [&](v1::GetReportResponse& response) {
                                       if (response.has_report()) report.MergeFrom(response.report());
                                       if (response.has_table())
                                         whole = AddPiece(std::move(*response.mutable_table()), report) && whole;
                                       return whole;
                                     });
  if (!whole) return absl::DataLossError("the pieces of the report do not fit together");
  if (!status.ok()) return status;
  return report;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  auto channel = OpenChannel(options);
  if (!channel.ok()) return channel.status();
  return std::make_unique<GrpcClient>(*channel);
}

std::unique_ptr<Client> Client::OnChannel(const std::shared_ptr<grpc::Channel>& channel) {
  return std::make_unique<GrpcClient>(channel);
}

bool IsDone(const v1::Operation& operation) {
  switch (operation.state()) {
    case v1::OPERATION_STATE_SUCCEEDED:
    case v1::OPERATION_STATE_FAILED:
    case v1::OPERATION_STATE_CANCELLED:
    case v1::OPERATION_STATE_INTERRUPTED:
      return true;
    default:
      return false;
  }
}

std::string ReplicaOf(const std::string& operation) {
  constexpr std::string_view kPrefix = "operations/";
  const size_t end = operation.rfind('/');
  if (!operation.starts_with(kPrefix) || end < kPrefix.size()) return "";
  return operation.substr(kPrefix.size(), end - kPrefix.size());
}

}  // namespace gatehouse::client
