#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINER_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/analysis/work.h"
#include "server/engine/training/adamw.h"
#include "server/engine/training/schedules.h"
#include "server/engine/training/trainable_model.h"
#include "server/engine/training/training_batches.h"
#include "server/engine/training/training_checkpoint.h"

namespace gatehouse {

// What a model does on held-out blocks.
struct Evaluation {
  at::Tensor cross_entropy;            // [blocks, window − 1] float64, nats
  std::vector<int64_t> linear_tokens;  // of each layer; all zero for soft decisions
  double Perplexity() const;
};

// ids: [blocks, window] int64.  Progress is counted in evaluations of one layer for one token.
absl::StatusOr<Evaluation> Evaluate(const TrainableModel& model, const at::Tensor& ids,
                                    TrainableModel::Decision decision, Work& work);

// The text of a training.
struct TrainingText {
  std::span<const int32_t> tokens;  // of the corpus
  int window = 0;
  std::vector<int64_t> train;   // blocks that steps see: all but the report split's
  std::vector<int64_t> fit;     // of these, what surrogates are fitted on
  std::vector<int64_t> report;  // held out: the curve and the final figures
};

struct TrainerOptions {
  int batch_sequences = 4;
  int evaluate_every = 25;
  double weight_decay = 0.01;
  double gradient_clip = 1;
  double gate_learning_rate = 1e-3;
  int sink_positions = 4;
  double ridge = 0.01;
  uint64_t seed = 0;
  std::string checkpoint_path;
  double checkpoint_seconds = 60;  // between two checkpoints
  TrainingIdentity identity;
};

// Runs one plan on a copy of a model's weights.  Work goes in small pieces that leave the
// training as it was until they are complete, so that it can stop at any of them: a
// cancelled training writes its checkpoint, and one that finds its checkpoint goes on from
// it to exactly the same result.  Everything it is given outlives it; used by one thread,
// outside inference mode.
class Trainer {
 public:
  Trainer(const ModelWeights& model, const TrainingPlan& plan, const TrainingText& text, const TrainerOptions& options,
          Work& work);

  // To the end.  Cancelled, with the checkpoint written, once that is asked for.
  absl::Status Run();

  const TrainableModel& model() const { return model_; }
  const TrainingProgress& progress() const { return progress_; }

  // About how much memory a training takes beside the model that serves: parameters, their
  // gradients and moments in float32, and what one piece of a step holds.
  static double MemoryBytes(const ModelWeights& model, int window);

  // What Run counts as its work.
  static double TotalWork(const ModelWeights& model, const TrainingPlan& plan, const TrainingText& text,
                          const TrainerOptions& options);

 private:
  absl::Status Resume();
  absl::Status Save();
  absl::Status Advance();
  bool StageIsDue() const;
  bool EvaluationIsDue() const;
  absl::Status BeginStage(const TrainingStage& stage);
  void Install(const TrainingStage& stage, const std::vector<Surrogate>& surrogates);
  absl::StatusOr<std::vector<Surrogate>> FitSurrogates(const TrainingStage& stage, std::vector<SurrogateFit>& fits);
  absl::Status AddCurvePoint();
  absl::Status TrainStep();
  // Of a step over so many sequences.
  double StepWork(int64_t sequences) const;

  const TrainingPlan& plan_;
  const TrainingText& text_;
  const TrainerOptions& options_;
  Work& work_;
  TrainableModel model_;
  AdamW optimizer_;
  TrainingBatches batches_;
  at::Tensor report_ids_;  // [blocks, window] int64
  TrainingProgress progress_;
  double saved_at_ = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINER_H_
