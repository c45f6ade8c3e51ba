#include <memory>
#include <type_traits>
#include <utility>

#include "gatehouse/v1/analysis.grpc.pb.h"
#include "server/rpc/call_runner.h"
#include "server/rpc/services.h"
#include "server/rpc/token_batches.h"
#include "server/rpc/translate.h"
#include "server/serving/scheduler.h"

namespace gatehouse {
namespace {

// Sends the events of one analysis; `Response` says which.  Kept by the scheduler until
// the call ends.
template <typename Response>
class AnalysisStream final : public AnalysisSink {
 public:
  explicit AnalysisStream(std::shared_ptr<StreamWriter> writer) : writer_(std::move(writer)) {}

  bool CanAccept() const override { return writer_->CanAccept(); }
  void OnEnd(const absl::Status& status) override { writer_->End(status); }
  void OnStart(std::shared_ptr<const Calibration> calibration) override {
    calibration_ = std::move(calibration);
    Response response;
    if constexpr (std::is_same_v<Response, v1::TraceConsensusResponse>) {
      *response.mutable_start() = ConsensusStartOf(calibration_->info());
    } else {
      *response.mutable_start() = NonlinearityStartOf(calibration_->info());
    }
    writer_->Send(response);
  }
  void OnTokens(InsightTokens tokens) override {
    const auto list = [input = static_cast<uint32_t>(tokens.input)](Response& response) {
      response.mutable_tokens()->set_input(input);
      return response.mutable_tokens()->mutable_tokens();
    };
    SendTokenBatches<Response>(*writer_, tokens.tokens, list,
                               [this](const TokenInsight& token) { return ToProto(token, &calibration_->info()); });
  }
  void OnSummary(AnalysisSummary summary) override {
    Response response;
    *response.mutable_summary() = ToProto(summary);
    writer_->Send(response);
  }

 private:
  const std::shared_ptr<StreamWriter> writer_;
  std::shared_ptr<const Calibration> calibration_;  // from OnStart on
};

using AnalysisBase = v1::AnalysisService::WithRawCallbackMethod_ScoreNonlinearity<
    v1::AnalysisService::WithRawCallbackMethod_TraceConsensus<v1::AnalysisService::Service>>;

class Analysis final : public AnalysisBase {
 public:
  explicit Analysis(const ServiceContext& service) : service_(service) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* ScoreNonlinearity(grpc::CallbackServerContext* context,
                                                                const grpc::ByteBuffer* bytes) override {
    return Run<v1::ScoreNonlinearityRequest, v1::ScoreNonlinearityResponse>("nonlinearity", context, bytes);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* TraceConsensus(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* bytes) override {
    return Run<v1::TraceConsensusRequest, v1::TraceConsensusResponse>("consensus", context, bytes);
  }

 private:
  template <typename Request, typename Response>
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Run(std::string_view method, grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes) {
    return RunScheduled<Request>(
        service_, method, context, bytes,
        [this](AnalysisRequest request, const CallOptions& options, const std::shared_ptr<StreamWriter>& writer) {
          return service_.scheduler->StartAnalysis(std::move(request), options,
                                                   std::make_shared<AnalysisStream<Response>>(writer));
        });
  }

  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAnalysisService(const ServiceContext& service) {
  return std::make_unique<Analysis>(service);
}

}  // namespace gatehouse
