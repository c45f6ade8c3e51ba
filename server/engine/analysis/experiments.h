#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_EXPERIMENTS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_EXPERIMENTS_H_

#include <atomic>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/engine/experiment.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// What an experiment runs on.  Everything outlives it.
struct ExperimentContext {
  const ModelWeights& model;
  const ExperimentOptions& options;
  std::span<const Corpus> corpora;  // at least one
  std::string directory;            // its own
  const ProgressFn& progress;
  const std::atomic<bool>& cancelled;
  TokenTextFn token_text = nullptr;  // may be null
};

// One function a method; each fills in everything of the report but model name,
// fingerprint, dtype, created and corpora, which RunExperiment adds.
absl::StatusOr<ExperimentResult> MeasureLinearizationCosts(const ExperimentContext& context);                  // A.2
absl::StatusOr<ExperimentResult> SweepGates(const ExperimentContext& context, const GateSweepMethod& method);  // A.3
absl::StatusOr<ExperimentResult> MeasureRoutability(const ExperimentContext& context);                         // A.4
absl::StatusOr<ExperimentResult> FindNoFlyLists(const ExperimentContext& context, const NoFlyMethod& method);  // A.5
absl::StatusOr<ExperimentResult> TrainLinearized(const ExperimentContext& context,
                                                 const TrainingMethod& method);  // A.6
absl::StatusOr<ExperimentResult> MeasureNonlinearity(const ExperimentContext& context,
                                                     const NonlinearityMethod& method);  // B.1, B.3
absl::StatusOr<ExperimentResult> ProbePolynomials(const ExperimentContext& context,
                                                  const PolynomialProbeMethod& method);  // B.2
absl::StatusOr<ExperimentResult> FindConsensus(const ExperimentContext& context,
                                               const ConsensusMethod& method);  // B.4-B.6, B.8, B.10
absl::StatusOr<ExperimentResult> AblateByConsensus(const ExperimentContext& context,
                                                   const AblationMethod& method);  // B.7
absl::StatusOr<ExperimentResult> CompareQuorumGates(const ExperimentContext& context,
                                                    const QuorumMethod& method);  // B.9

// Checks the options and corpora and runs the method: see Engine::RunExperiment.
absl::StatusOr<ExperimentResult> RunExperiment(const ModelWeights& model, const ExperimentSpec& spec,
                                               std::span<const Corpus> corpora, const std::string& directory,
                                               const ProgressFn& progress, const std::atomic<bool>& cancelled);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_EXPERIMENTS_H_
