#include <memory>
#include <utility>
#include <vector>

#include "gatehouse/v1/generation.grpc.pb.h"
#include "server/rpc/activation_batches.h"
#include "server/rpc/call_runner.h"
#include "server/rpc/pinned_calibration.h"
#include "server/rpc/services.h"
#include "server/rpc/token_batches.h"
#include "server/rpc/translate.h"
#include "server/serving/scheduler.h"

namespace gatehouse {
namespace {

// Sends the events of one generation.  Kept by the scheduler until the call ends.
class GenerationStream final : public GenerationSink {
 public:
  GenerationStream(std::shared_ptr<StreamWriter> writer, std::shared_ptr<const Calibration> calibration)
      : writer_(std::move(writer)), calibration_(std::move(calibration)) {}

  bool CanAccept() const override { return writer_->CanAccept(); }
  void OnEnd(const absl::Status& status) override { writer_->End(status); }
  void OnStart(const GenerationStart& start) override {
    v1::GenerateResponse response;
    *response.mutable_start() = ToProto(start);
    writer_->Send(response);
  }
  void OnPrompt(std::vector<TokenInsight> tokens) override {
    SendTokenBatches<v1::GenerateResponse>(
        *writer_, tokens, [](v1::GenerateResponse& response) { return response.mutable_prompt()->mutable_tokens(); },
        [this](const TokenInsight& token) { return ToProto(token, InfoOf(calibration_)); });
  }
  void OnToken(GeneratedToken token) override {
    v1::GenerateResponse response;
    *response.mutable_token() = ToProto(token, InfoOf(calibration_));
    writer_->Send(response);
  }
  void OnActivations(Activations activations) override { SendActivations<v1::GenerateResponse>(*writer_, activations); }
  void OnSummary(GenerationSummary summary) override {
    v1::GenerateResponse response;
    *response.mutable_summary() = ToProto(summary);
    writer_->Send(response);
  }

 private:
  const std::shared_ptr<StreamWriter> writer_;
  const std::shared_ptr<const Calibration> calibration_;
};

class Generation final : public v1::GenerationService::WithRawCallbackMethod_Generate<v1::GenerationService::Service> {
 public:
  explicit Generation(const ServiceContext& service) : service_(service) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* bytes) override {
    return RunScheduled<v1::GenerateRequest>(
        service_, "generate", context, bytes,
        [this](GenerateRequest request, const CallOptions& options, const std::shared_ptr<StreamWriter>& writer) {
          auto calibration = PinCalibration(service_, request.model, request.records, request.gating);
          auto sink = std::make_shared<GenerationStream>(writer, std::move(calibration));
          return service_.scheduler->StartGenerate(std::move(request), options, std::move(sink));
        });
  }

 private:
  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGenerationService(const ServiceContext& service) {
  return std::make_unique<Generation>(service);
}

}  // namespace gatehouse
