#include "server/serving/scoring_task.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "server/base/clock.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/request_checks.h"

namespace gatehouse {

absl::StatusOr<std::unique_ptr<Task>> ScoringTask::Create(const TaskContext& context, ScoreRequest request,
                                                          std::shared_ptr<ScoreSink> sink) {
  GH_RETURN_IF_ERROR(CheckTopLogprobs(request.top_logprobs));
  GH_ASSIGN_OR_RETURN(RoutingPolicy policy,
                      ResolveGating(request.gating, request.records, *context.model, request.interventions));
  GH_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ResolveInput(request.input, *context.model, "input"));
  GH_ASSIGN_OR_RETURN(const ScoreWindows windows,
                      ScoreWindows::Create(static_cast<int64_t>(ids.size()), request.window_size, request.stride,
                                           request.blocks, SequenceCapacity(*context.model->engine)));
  if (!request.captures.empty() && windows.count() > 1) {
    return absl::InvalidArgumentError(StrCat("captures needs a text of one window, this one has ", windows.count()));
  }
  GH_ASSIGN_OR_RETURN(CallInterventions interventions,
                      ResolveInterventions(std::move(request.interventions), request.captures, policy,
                                           context.model->engine->info(), static_cast<int64_t>(ids.size())));
  return std::unique_ptr<Task>(new ScoringTask(context, std::move(request), std::move(ids), windows, std::move(policy),
                                               std::move(interventions), std::move(sink)));
}

ScoringTask::ScoringTask(const TaskContext& context, ScoreRequest request, std::vector<int32_t> ids,
                         ScoreWindows windows, RoutingPolicy policy, CallInterventions interventions,
                         std::shared_ptr<ScoreSink> sink)
    : context_(context),
      request_(std::move(request)),
      ids_(std::move(ids)),
      windows_(windows),
      policy_(std::move(policy)),
      interventions_(std::move(interventions)),
      sink_(std::move(sink)),
      window_(windows_.At(0)),
      tally_(context.model->engine->info()) {}

void ScoringTask::OnAdmitted(double) { admitted_at_ = MonotonicSeconds(); }

bool ScoringTask::Scores(int64_t position) const {
  return position < window_.end && (position > window_.first || (position == window_.first && window_.scores_first));
}

int ScoringTask::chunk() const {
  const int most = std::min(context_.prefill_chunk, interventions_.most_positions);
  return static_cast<int>(std::min<int64_t>(most, window_.fed_end - fed_));
}

Task::Next ScoringTask::NextRow() {
  const int count = chunk();
  targets_.assign(count, -1);
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (!Scores(fed_ + i + 1)) continue;
    targets_[i] = ids_[fed_ + i + 1];
    any = true;
  }
  Next next;
  next.position = static_cast<int>(fed_ - window_.begin);
  next.phase = Phase::kScore;
  next.row.policy = &policy_;
  interventions_.Apply(next.row);
  next.row.position_offset = static_cast<int>(window_.begin);
  next.row.tokens = std::span(ids_).subspan(fed_, count);
  if (any) {
    next.row.targets = targets_;
    next.row.top_alternatives = request_.top_logprobs;
  }
  if (!request_.summary_only && fed_ + count > window_.first) next.row.records = request_.records;
  return next;
}

absl::StatusOr<bool> ScoringTask::Deliver(RowResult result) {
  const int count = chunk();
  tally_.Add(count, result);
  for (Activations& captured : interventions_.Take(std::move(result.captured), context_.model->engine->info())) {
    sink_->OnActivations(std::move(captured));
  }
  std::vector<ScoredToken> events;
  for (int i = 0; i < count; ++i) {
    const int64_t position = fed_ + i;
    if (position >= window_.first) {
      std::optional<TokenInsight> insight;
      if (!request_.summary_only && request_.records.any()) {
        insight = InsightAt(result.records, i, ids_[position], static_cast<int>(position - window_.begin),
                            *context_.model->tokenizer);
      }
      Emit(position, std::move(insight), events);
    }
    if (!Scores(position + 1)) continue;
    if (i >= static_cast<int>(result.target_logprobs.size())) {
      return absl::InternalError("the engine returned no log-probability for a target");
    }
    score_ = Score{.logprob = result.target_logprobs[i], .top = {}};
    if (i < static_cast<int>(result.target_top.size())) score_->top = std::move(result.target_top[i]);
  }
  fed_ += count;
  if (fed_ < window_.fed_end) {
    if (!events.empty()) sink_->OnTokens(std::move(events));
    return false;
  }
  if (window_.fed_end < window_.end) Emit(window_.fed_end, std::nullopt, events);
  if (!events.empty()) sink_->OnTokens(std::move(events));
  if (++index_ == windows_.count()) {
    Summarize();
    return true;
  }
  window_ = windows_.At(index_);
  fed_ = window_.begin;
  return false;
}

void ScoringTask::Emit(int64_t position, std::optional<TokenInsight> insight, std::vector<ScoredToken>& events) {
  const std::optional<Score> score = std::exchange(score_, std::nullopt);
  ++emitted_;
  if (score.has_value()) {
    ++scored_;
    total_logprob_ += score->logprob;
  }
  if (request_.summary_only) return;
  ScoredToken event;
  event.id = ids_[position];
  event.position = position;
  event.raw = std::string(context_.model->tokenizer->TokenBytes(event.id));
  if (score.has_value()) {
    event.logprob = score->logprob;
    event.top = Alternatives(score->top, *context_.model->tokenizer);
  }
  event.insight = std::move(insight);
  events.push_back(std::move(event));
}

void ScoringTask::Summarize() {
  ended_at_ = MonotonicSeconds();
  ScoreSummary summary;
  summary.tokens = ids_.size();
  summary.scored_tokens = scored_;
  summary.total_logprob = total_logprob_;
  if (scored_ > 0) summary.perplexity = std::exp(-total_logprob_ / static_cast<double>(scored_));
  summary.windows = static_cast<uint32_t>(windows_.count());
  summary.seconds = ended_at_ - admitted_at_;
  summary.routing = tally_.Report(policy_, interventions_.notes);
  sink_->OnSummary(std::move(summary));
}

void ScoringTask::Describe(CallObservation& observation) const {
  observation.method = "score";
  observation.prompt_tokens = static_cast<int64_t>(emitted_);
  if (ended_at_ > 0) observation.prefill_seconds = ended_at_ - admitted_at_;
}

}  // namespace gatehouse
