#ifndef GATEHOUSE_SERVER_SERVING_ANALYSIS_TASK_H_
#define GATEHOUSE_SERVER_SERVING_ANALYSIS_TASK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/serving/insight.h"
#include "server/serving/requests.h"
#include "server/serving/task.h"

namespace gatehouse {

// Records what the MLPs do with each token of a batch of texts, text after text, each
// from an empty sequence.
class AnalysisTask final : public Task {
 public:
  static absl::StatusOr<std::unique_ptr<Task>> Create(const TaskContext& context, AnalysisRequest request,
                                                      std::shared_ptr<AnalysisSink> sink);

  int sequence_tokens() const override;
  int64_t prompt_tokens() const override;
  CallSink& sink() const override { return *sink_; }
  void OnAdmitted(double queue_seconds) override;
  Next NextRow() override;
  absl::StatusOr<bool> Deliver(RowResult result) override;
  void Describe(CallObservation& observation) const override;

 private:
  AnalysisTask(const TaskContext& context, RecordRequest records, std::vector<std::vector<int32_t>> inputs,
               RoutingPolicy policy, std::shared_ptr<AnalysisSink> sink);

  // Positions of the next row.
  int chunk() const;

  const TaskContext context_;
  const RecordRequest records_;
  const std::vector<std::vector<int32_t>> inputs_;
  const RoutingPolicy policy_;
  const std::shared_ptr<AnalysisSink> sink_;

  size_t input_ = 0;
  int fed_ = 0;  // positions of the input that went through the model
  uint64_t tokens_ = 0;
  RoutingTally tally_;
  double admitted_at_ = 0, ended_at_ = 0;  // MonotonicSeconds
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_ANALYSIS_TASK_H_
