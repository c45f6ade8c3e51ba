#ifndef GATEHOUSE_SERVER_SERVING_GENERATION_TASK_H_
#define GATEHOUSE_SERVER_SERVING_GENERATION_TASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/sampling.h"
#include "server/serving/insight.h"
#include "server/serving/interventions.h"
#include "server/serving/requests.h"
#include "server/serving/task.h"
#include "server/serving/text_assembler.h"

namespace gatehouse {

// Generates text: the prompt goes through the model in chunks, then each sampled token
// is fed back for the next one.  The last token is never fed, so a prompt of n tokens
// leaves room for context − n + 1.
//
// A token is recorded when it is fed back; with records on, its event therefore comes
// one step later, carrying them.
class GenerationTask final : public Task {
 public:
  static absl::StatusOr<std::unique_ptr<Task>> Create(const TaskContext& context, GenerateRequest request,
                                                      std::shared_ptr<GenerationSink> sink);

  int sequence_tokens() const override { return static_cast<int>(prompt_.size()) + max_tokens_ - 1; }
  int64_t prompt_tokens() const override { return static_cast<int64_t>(prompt_.size()); }
  CallSink& sink() const override { return *sink_; }
  void OnAdmitted(double queue_seconds) override;
  Next NextRow() override;
  absl::StatusOr<bool> Deliver(RowResult result) override;
  void Describe(CallObservation& observation) const override;

 private:
  GenerationTask(const TaskContext& context, GenerateRequest request, std::vector<int32_t> prompt, int max_tokens,
                 RoutingPolicy policy, CallInterventions interventions, SamplingState sampling,
                 std::shared_ptr<GenerationSink> sink);

  bool in_prompt() const { return fed_ < static_cast<int>(prompt_.size()); }
  // Tokens of the prompt's next row.
  int chunk() const;
  void SendPromptRecords(const TokenRecords& records, int first, int count);
  // Takes up a sampled token; true when it was the last.
  bool Take(const SampledToken& sampled);
  // Appends the token's text to `event`, and says whether the generation ends with it.
  std::optional<FinishReason> Append(GeneratedToken& event);
  void Summarize();

  const TaskContext context_;
  const GenerateRequest request_;
  const std::vector<int32_t> prompt_;
  const int max_tokens_;
  const RoutingPolicy policy_;
  const CallInterventions interventions_;
  SamplingState sampling_;
  const std::shared_ptr<GenerationSink> sink_;

  int fed_ = 0;  // positions that went through the model
  int generated_ = 0;
  int32_t last_token_ = 0;
  std::optional<GeneratedToken> unsent_;  // waits for its records
  TextAssembler assembler_;
  RoutingTally tally_;
  std::optional<FinishReason> finish_reason_;

  double queue_seconds_ = 0;
  double admitted_at_ = 0, first_token_at_ = 0, last_token_at_ = 0;  // MonotonicSeconds
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_GENERATION_TASK_H_
