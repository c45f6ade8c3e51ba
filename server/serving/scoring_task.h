#ifndef GATEHOUSE_SERVER_SERVING_SCORING_TASK_H_
#define GATEHOUSE_SERVER_SERVING_SCORING_TASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/serving/insight.h"
#include "server/serving/interventions.h"
#include "server/serving/requests.h"
#include "server/serving/score_windows.h"
#include "server/serving/task.h"

namespace gatehouse {

// Scores a text, window after window, each from an empty sequence.
class ScoringTask final : public Task {
 public:
  static absl::StatusOr<std::unique_ptr<Task>> Create(const TaskContext& context, ScoreRequest request,
                                                      std::shared_ptr<ScoreSink> sink);

  int sequence_tokens() const override { return windows_.most_fed(); }
  int64_t prompt_tokens() const override { return static_cast<int64_t>(ids_.size()); }
  CallSink& sink() const override { return *sink_; }
  void OnAdmitted(double queue_seconds) override;
  Next NextRow() override;
  absl::StatusOr<bool> Deliver(RowResult result) override;
  void Describe(CallObservation& observation) const override;

 private:
  // The score of one position, from the row that holds the one before.
  struct Score {
    float logprob = 0;
    std::vector<TokenLogprob> top;
  };

  ScoringTask(const TaskContext& context, ScoreRequest request, std::vector<int32_t> ids, ScoreWindows windows,
              RoutingPolicy policy, CallInterventions interventions, std::shared_ptr<ScoreSink> sink);

  // Whether this window scores `position`.
  bool Scores(int64_t position) const;
  // Positions of the next row.
  int chunk() const;
  // Adds up the token at `position` and, unless only the summary is wanted, makes its
  // event.
  void Emit(int64_t position, std::optional<TokenInsight> insight, std::vector<ScoredToken>& events);
  void Summarize();

  const TaskContext context_;
  const ScoreRequest request_;
  const std::vector<int32_t> ids_;
  const ScoreWindows windows_;
  const RoutingPolicy policy_;
  const CallInterventions interventions_;
  const std::shared_ptr<ScoreSink> sink_;

  int64_t index_ = 0;  // of the window
  ScoreWindows::Window window_;
  int64_t fed_ = 0;               // the next position that goes through the model
  std::optional<Score> score_;    // of the next position to be emitted
  std::vector<int32_t> targets_;  // of the next row

  uint64_t emitted_ = 0, scored_ = 0;
  double total_logprob_ = 0;
  RoutingTally tally_;
  double admitted_at_ = 0, ended_at_ = 0;  // MonotonicSeconds
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_SCORING_TASK_H_
