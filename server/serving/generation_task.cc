#include "server/serving/generation_task.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "server/base/clock.h"
#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/request_checks.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxLogitBiases = 1024;

// How many tokens may be generated after a prompt of `prompt_tokens`.
absl::StatusOr<int> ResolveMaxTokens(const GenerateRequest& request, const Engine& engine, size_t prompt_tokens) {
  if (request.max_tokens == 0u) {
    return absl::InvalidArgumentError("max_tokens is 0, must be at least 1; use Score for the prompt alone");
  }
  const int capacity = SequenceCapacity(engine);
  if (prompt_tokens > static_cast<size_t>(capacity)) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("prompt has ", prompt_tokens, " tokens, the model has room for ", capacity)),
        reason::kPromptTooLong);
  }
  const uint32_t room = static_cast<uint32_t>(capacity) - static_cast<uint32_t>(prompt_tokens) + 1;
  return static_cast<int>(std::min(request.max_tokens.value_or(room), room));
}

uint64_t FreshSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> GenerationTask::Create(const TaskContext& context, GenerateRequest request,
                                                             std::shared_ptr<GenerationSink> sink) {
  const ModelInfo& info = context.model->engine->info();
  GH_RETURN_IF_ERROR(CheckTopLogprobs(request.top_logprobs));
  GH_RETURN_IF_ERROR(CheckStopConditions(request.stop, info.vocab_size));
  if (request.sampling.logit_bias.size() > kMaxLogitBiases) {
    return absl::InvalidArgumentError(StrCat("sampling.logit_bias has ", request.sampling.logit_bias.size(),
                                             " entries, at most ", kMaxLogitBiases, " are allowed"));
  }
  if (!request.has_seed) request.sampling.seed = FreshSeed();
  GH_ASSIGN_OR_RETURN(SamplingState sampling, SamplingState::Create(request.sampling, info.vocab_size));
  GH_ASSIGN_OR_RETURN(RoutingPolicy policy,
                      ResolveGating(request.gating, request.records, *context.model, request.interventions));
  GH_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, ResolveInput(request.prompt, *context.model, "prompt"));
  GH_ASSIGN_OR_RETURN(const int max_tokens, ResolveMaxTokens(request, *context.model->engine, prompt.size()));
  GH_ASSIGN_OR_RETURN(CallInterventions interventions,
                      ResolveInterventions(std::move(request.interventions), request.captures, policy, info,
                                           static_cast<int64_t>(prompt.size()) + max_tokens - 1));
  return std::unique_ptr<Task>(new GenerationTask(context, std::move(request), std::move(prompt), max_tokens,
                                                  std::move(policy), std::move(interventions), std::move(sampling),
                                                  std::move(sink)));
}

GenerationTask::GenerationTask(const TaskContext& context, GenerateRequest request, std::vector<int32_t> prompt,
                               int max_tokens, RoutingPolicy policy, CallInterventions interventions,
                               SamplingState sampling, std::shared_ptr<GenerationSink> sink)
    : context_(context),
      request_(std::move(request)),
      prompt_(std::move(prompt)),
      max_tokens_(max_tokens),
      policy_(std::move(policy)),
      interventions_(std::move(interventions)),
      sampling_(std::move(sampling)),
      sink_(std::move(sink)),
      assembler_(request_.stop.strings),
      tally_(context.model->engine->info()) {
  sampling_.Observe(prompt_);
}

void GenerationTask::OnAdmitted(double queue_seconds) {
  queue_seconds_ = queue_seconds;
  admitted_at_ = MonotonicSeconds();
  sink_->OnStart({.prompt_tokens = static_cast<int>(prompt_.size()), .max_tokens = max_tokens_});
}

int GenerationTask::chunk() const {
  return std::min({context_.prefill_chunk, interventions_.most_positions, static_cast<int>(prompt_.size()) - fed_});
}

Task::Next GenerationTask::NextRow() {
  Next next;
  next.position = fed_;
  next.row.policy = &policy_;
  interventions_.Apply(next.row);
  bool samples = true;
  if (in_prompt()) {
    next.phase = Phase::kPrefill;
    next.row.tokens = std::span(prompt_).subspan(fed_, chunk());
    if (request_.record_prompt) next.row.records = request_.records;
    samples = fed_ + chunk() == static_cast<int>(prompt_.size());
  } else {
    next.phase = Phase::kDecode;
    next.row.tokens = std::span(&last_token_, 1);
    next.row.records = request_.records;
  }
  if (samples) {
    next.row.sampling = &sampling_;
    next.row.top_alternatives = request_.top_logprobs;
  }
  return next;
}

absl::StatusOr<bool> GenerationTask::Deliver(RowResult result) {
  const bool prompt = in_prompt();
  const int first = fed_;
  const int count = prompt ? chunk() : 1;
  tally_.Add(count, result);
  fed_ += count;
  if (prompt && request_.record_prompt && request_.records.any()) SendPromptRecords(result.records, first, count);
  for (Activations& captured : interventions_.Take(std::move(result.captured), context_.model->engine->info())) {
    sink_->OnActivations(std::move(captured));
  }
  if (unsent_.has_value()) {
    unsent_->insight = InsightAt(result.records, 0, last_token_, first, *context_.model->tokenizer);
    sink_->OnToken(*std::exchange(unsent_, std::nullopt));
  }
  if (in_prompt()) return false;
  if (!result.sampled.has_value()) return absl::InternalError("the engine sampled no token");
  return Take(*result.sampled);
}

void GenerationTask::SendPromptRecords(const TokenRecords& records, int first, int count) {
  std::vector<TokenInsight> tokens;
  tokens.reserve(count);
  for (int i = 0; i < count; ++i) {
    tokens.push_back(InsightAt(records, i, prompt_[first + i], first + i, *context_.model->tokenizer));
  }
  sink_->OnPrompt(std::move(tokens));
}

bool GenerationTask::Take(const SampledToken& sampled) {
  const double now = MonotonicSeconds();
  if (generated_ == 0) {
    first_token_at_ = now;
  } else {
    context_.observer->OnInterToken(context_.model->name, now - last_token_at_);
  }
  last_token_at_ = now;
  ++generated_;
  last_token_ = sampled.token.id;
  sampling_.Observe(std::span(&last_token_, 1));

  GeneratedToken event;
  event.id = sampled.token.id;
  event.raw = std::string(context_.model->tokenizer->TokenBytes(event.id));
  event.logprob = sampled.token.logprob;
  event.top = Alternatives(sampled.top, *context_.model->tokenizer);
  finish_reason_ = Append(event);
  if (!finish_reason_.has_value() && request_.records.any()) {
    unsent_ = std::move(event);
    return false;
  }
  sink_->OnToken(std::move(event));
  if (!finish_reason_.has_value()) return false;
  Summarize();
  return true;
}

std::optional<FinishReason> GenerationTask::Append(GeneratedToken& event) {
  if (Contains(request_.stop.token_ids, event.id)) return FinishReason::kStopToken;
  if (!request_.stop.ignore_eos && Contains(context_.model->engine->info().eos_token_ids, event.id)) {
    return FinishReason::kEos;
  }
  event.text = assembler_.Append(event.raw);
  if (assembler_.stopped()) return FinishReason::kStopString;
  if (generated_ == max_tokens_) return FinishReason::kLength;
  return std::nullopt;
}

void GenerationTask::Summarize() {
  GenerationSummary summary;
  summary.finish_reason = *finish_reason_;
  summary.matched_stop = std::string(assembler_.matched_stop());
  summary.text = assembler_.Finish();
  summary.prompt_tokens = static_cast<int>(prompt_.size());
  summary.generated_tokens = generated_;
  summary.queue_seconds = queue_seconds_;
  summary.prefill_seconds = first_token_at_ - admitted_at_;
  summary.decode_seconds = last_token_at_ - first_token_at_;
  summary.routing = tally_.Report(policy_, interventions_.notes);
  summary.seed = request_.sampling.seed;
  sink_->OnSummary(std::move(summary));
}

void GenerationTask::Describe(CallObservation& observation) const {
  observation.method = "generate";
  observation.finish_reason = finish_reason_;
  observation.prompt_tokens = std::min<int64_t>(fed_, static_cast<int64_t>(prompt_.size()));
  observation.generated_tokens = generated_;
  if (generated_ == 0) return;
  observation.prefill_seconds = first_token_at_ - admitted_at_;
  observation.decode_seconds = last_token_at_ - first_token_at_;
  observation.first_token_seconds = queue_seconds_ + observation.prefill_seconds;
}

}  // namespace gatehouse
