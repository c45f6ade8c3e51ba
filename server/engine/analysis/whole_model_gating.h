#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_WHOLE_MODEL_GATING_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_WHOLE_MODEL_GATING_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/work.h"
#include "server/engine/calibration.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/gated_forward.h"

namespace gatehouse {

// Whole-model gating to a budget (methods A.7): surrogates, ladders and gates of all layers
// together, and the operating points that keep the budgets.

// Refuses what cannot be done, naming the option.
absl::Status CheckBudgetOptions(const BudgetOptions& options);

// The budgets asked for and those every calibration with budgets has, ascending.
std::vector<double> AllBudgets(const BudgetOptions& options);

// The blocks of a calibration; select and report with their full cross-entropies.
struct GatingSplits {
  SplitStream& fit;
  SplitStream& gate;
  const SplitStream& select;
  const SplitStream& report;
};

struct WholeModelGating {
  std::vector<CheapPaths> paths;
  std::vector<OperatingPoint> points;
  std::vector<std::string> ingredients;  // see CalibrationInfo
};

// `fitted` holds each layer's own surrogate (A.1), where everything begins.  Surrogates and
// ladders are fitted on the fit split, gates on the gate split; all are tuned on both, points
// chosen on select and reported on report.  Restarts the fit and gate streams.
absl::StatusOr<WholeModelGating> GateWholeModel(const ModelWeights& model, const CalibrateOptions& options,
                                                const std::vector<FittedMlp>& fitted, const GatingSplits& splits,
                                                Work& work);

// What GateWholeModel will do, in evaluations of one layer for one token.
double WholeModelGatingWork(const ModelWeights& model, const CalibrateOptions& options, const GatingSplits& splits);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_WHOLE_MODEL_GATING_H_
