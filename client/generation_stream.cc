#include "client/generation_stream.h"

#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "client/call_context.h"
#include "client/errors.h"

namespace gatehouse::client {
namespace {

// One call.  Owns itself: OnDone, which gRPC calls last, deletes it.  Its methods run on
// gRPC's threads, one at a time.
class GenerationStream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GenerationStream(const v1::GenerateRequest& request, GenerationEvents events, GenerationEnd on_end,
                   const CallOptions& options)
      : request_(request),
        events_(std::move(events)),
        on_end_(std::move(on_end)),
        context_(absl::Now() + options.timeout, options.canceller, options.replica) {}

  void Start(v1::GenerationService::Stub& stub) {
    stub.async()->Generate(context_.get(), &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // the end
    if (response_.has_summary()) summary_ = response_.summary();
    if (!TellGeneration(events_, response_)) context_.Cancel();
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Status ended = ToStatus(status);
    const GenerationEnd on_end = std::move(on_end_);
    std::optional<v1::GenerationSummary> summary = std::move(summary_);
    // The canceller forgets the call before anyone hears that it has ended.
    delete this;
    if (!ended.ok()) {
      on_end(ended);
    } else if (!summary.has_value()) {
      on_end(absl::InternalError("the server ended the answer without a summary"));
    } else {
      on_end(*std::move(summary));
    }
  }

 private:
  const v1::GenerateRequest request_;
  const GenerationEvents events_;
  GenerationEnd on_end_;
  CallContext context_;
  v1::GenerateResponse response_;
  std::optional<v1::GenerationSummary> summary_;
};

}  // namespace

bool TellGeneration(const GenerationEvents& events, const v1::GenerateResponse& response) {
  switch (response.event_case()) {
    case v1::GenerateResponse::kStart:
      return Tell(events.on_start, response.start());
    case v1::GenerateResponse::kPrompt:
      return Tell(events.on_prompt, response.prompt());
    case v1::GenerateResponse::kToken:
      return Tell(events.on_token, response.token());
    case v1::GenerateResponse::kActivations:
      return Tell(events.on_activations, response.activations());
    default:
      return true;
  }
}

void StartGenerationStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                           GenerationEvents events, GenerationEnd on_end, const CallOptions& options) {
  if (absl::Status status = CheckUtf8(request); !status.ok()) {
    on_end(status);
    return;
  }
  (new GenerationStream(request, std::move(events), std::move(on_end), options))->Start(stub);
}

}  // namespace gatehouse::client
