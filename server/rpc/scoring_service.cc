#include <memory>
#include <utility>
#include <vector>

#include "gatehouse/v1/scoring.grpc.pb.h"
#include "server/rpc/activation_batches.h"
#include "server/rpc/call_runner.h"
#include "server/rpc/pinned_calibration.h"
#include "server/rpc/services.h"
#include "server/rpc/token_batches.h"
#include "server/rpc/translate.h"
#include "server/serving/scheduler.h"

namespace gatehouse {
namespace {

// Sends the events of one scoring.  Kept by the scheduler until the call ends.
class ScoreStream final : public ScoreSink {
 public:
  ScoreStream(std::shared_ptr<StreamWriter> writer, std::shared_ptr<const Calibration> calibration)
      : writer_(std::move(writer)), calibration_(std::move(calibration)) {}

  bool CanAccept() const override { return writer_->CanAccept(); }
  void OnEnd(const absl::Status& status) override { writer_->End(status); }
  void OnTokens(std::vector<ScoredToken> tokens) override {
    SendTokenBatches<v1::ScoreResponse>(
        *writer_, tokens, [](v1::ScoreResponse& response) { return response.mutable_tokens()->mutable_tokens(); },
        [this](const ScoredToken& token) { return ToProto(token, InfoOf(calibration_)); });
  }
  void OnActivations(Activations activations) override { SendActivations<v1::ScoreResponse>(*writer_, activations); }
  void OnSummary(ScoreSummary summary) override {
    v1::ScoreResponse response;
    *response.mutable_summary() = ToProto(summary);
    writer_->Send(response);
  }

 private:
  const std::shared_ptr<StreamWriter> writer_;
  const std::shared_ptr<const Calibration> calibration_;
};

class Scoring final : public v1::ScoringService::WithRawCallbackMethod_Score<v1::ScoringService::Service> {
 public:
  explicit Scoring(const ServiceContext& service) : service_(service) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Score(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes) override {
    return RunScheduled<v1::ScoreRequest>(
        service_, "score", context, bytes,
        [this](ScoreRequest request, const CallOptions& options, const std::shared_ptr<StreamWriter>& writer) {
          auto calibration = PinCalibration(service_, request.model, request.records, request.gating);
          auto sink = std::make_shared<ScoreStream>(writer, std::move(calibration));
          return service_.scheduler->StartScore(std::move(request), options, std::move(sink));
        });
  }

 private:
  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeScoringService(const ServiceContext& service) {
  return std::make_unique<Scoring>(service);
}

}  // namespace gatehouse
