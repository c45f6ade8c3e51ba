#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/experiment.h"
#include "server/engine/model/config.h"
#include "server/engine/training/schedules.h"
#include "server/engine/training/trainer.h"

namespace gatehouse {

// A model as it ended, on every corpus in turn.
struct TrainingArm {
  std::string name;
  std::vector<TrainableModel::Mode> modes;  // of each layer
  bool routed = true;                       // hard decisions; soft ones save no work
  std::vector<Evaluation> evaluations;

  // Share of the MLPs' multiplications that were not done, and of all tokens in all layers
  // that went linear.
  double WorkSaved(const ModelConfig& config, int sinks, size_t corpus) const;
  double LinearFraction(size_t corpus) const;
};

// What a training and its control came to.
struct TrainingOutcome {
  const ExperimentContext& context;
  const TrainingMethod& method;
  const TrainingPlan& plan;
  const TrainingText& text;
  const std::vector<CorpusPlan>& corpora;  // the first is the one trained on
  const std::vector<int>& order;
  TrainingArm untouched = {}, run = {}, control = {};
  std::vector<TrainingArm> others = {};  // such as gates before they harden
  TrainingProgress run_progress = {}, control_progress = {};
};

// The relative change of perplexity from one arm to another on a corpus.
Interval ChangeBetween(const TrainingOutcome& outcome, const TrainingArm& from, const TrainingArm& to, size_t corpus);

// The report, with run and control side by side everywhere, and the cross-entropies behind
// its final figures.
ExperimentResult ReportTraining(const TrainingOutcome& outcome);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_REPORT_H_
