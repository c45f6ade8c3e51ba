#include "server/serving/analysis_task.h"

#include <algorithm>
#include <span>
#include <utility>

#include "server/base/clock.h"
#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/request_checks.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxInputs = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> AnalysisTask::Create(const TaskContext& context, AnalysisRequest request,
                                                           std::shared_ptr<AnalysisSink> sink) {
  if (!(!request.inputs.empty() && request.inputs.size() <= kMaxInputs)) {
    return absl::InvalidArgumentError(
        StrCat("inputs has ", request.inputs.size(), " texts, must be in [1, ", kMaxInputs, "]"));
  }
  GH_ASSIGN_OR_RETURN(RoutingPolicy policy, ResolveGating(request.gating, request.records, *context.model));
  const int capacity = SequenceCapacity(*context.model->engine);
  std::vector<std::vector<int32_t>> inputs;
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const std::string field = StrCat("inputs[", i, "]");
    GH_ASSIGN_OR_RETURN(inputs.emplace_back(), ResolveInput(request.inputs[i], *context.model, field));
    if (inputs.back().size() > static_cast<size_t>(capacity)) {
      return WithReason(absl::InvalidArgumentError(
                            StrCat(field, " has ", inputs.back().size(), " tokens, the model has room for ", capacity)),
                        reason::kPromptTooLong);
    }
  }
  return std::unique_ptr<Task>(
      new AnalysisTask(context, request.records, std::move(inputs), std::move(policy), std::move(sink)));
}

AnalysisTask::AnalysisTask(const TaskContext& context, RecordRequest records, std::vector<std::vector<int32_t>> inputs,
                           RoutingPolicy policy, std::shared_ptr<AnalysisSink> sink)
    : context_(context),
      records_(records),
      inputs_(std::move(inputs)),
      policy_(std::move(policy)),
      sink_(std::move(sink)),
      tally_(context.model->engine->info()) {}

int AnalysisTask::sequence_tokens() const {
  size_t longest = 0;
  for (const std::vector<int32_t>& input : inputs_) longest = std::max(longest, input.size());
  return static_cast<int>(longest);
}

int64_t AnalysisTask::prompt_tokens() const {
  int64_t tokens = 0;
  for (const std::vector<int32_t>& input : inputs_) tokens += static_cast<int64_t>(input.size());
  return tokens;
}

void AnalysisTask::OnAdmitted(double) {
  admitted_at_ = MonotonicSeconds();
  sink_->OnStart(policy_.calibration());
}

int AnalysisTask::chunk() const {
  return std::min(context_.prefill_chunk, static_cast<int>(inputs_[input_].size()) - fed_);
}

Task::Next AnalysisTask::NextRow() {
  Next next;
  next.position = fed_;
  next.phase = Phase::kScore;
  next.row.policy = &policy_;
  next.row.tokens = std::span(inputs_[input_]).subspan(fed_, chunk());
  next.row.records = records_;
  return next;
}

absl::StatusOr<bool> AnalysisTask::Deliver(RowResult result) {
  const std::vector<int32_t>& ids = inputs_[input_];
  const int count = chunk();
  tally_.Add(count, result);
  InsightTokens event;
  event.input = static_cast<int>(input_);
  event.tokens.reserve(count);
  for (int i = 0; i < count; ++i) {
    event.tokens.push_back(InsightAt(result.records, i, ids[fed_ + i], fed_ + i, *context_.model->tokenizer));
  }
  tokens_ += count;
  fed_ += count;
  sink_->OnTokens(std::move(event));
  if (fed_ < static_cast<int>(ids.size())) return false;
  fed_ = 0;
  if (++input_ < inputs_.size()) return false;
  ended_at_ = MonotonicSeconds();
  sink_->OnSummary({.tokens = tokens_, .seconds = ended_at_ - admitted_at_, .routing = tally_.Report(policy_)});
  return true;
}

void AnalysisTask::Describe(CallObservation& observation) const {
  observation.method = records_.nonlinearity ? "nonlinearity" : "consensus";
  observation.prompt_tokens = static_cast<int64_t>(tokens_);
  if (ended_at_ > 0) observation.prefill_seconds = ended_at_ - admitted_at_;
}

}  // namespace gatehouse
