#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_OPERATING_POINTS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_OPERATING_POINTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/work.h"
#include "server/engine/calibration.h"
#include "server/engine/mlp_work.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/gated_forward.h"

namespace gatehouse {

// Operating points of whole-model gating (methods A.7): thresholds of all layers chosen
// together so that the whole model keeps a budget.

// What a split does at an operating point.
struct PointRun {
  at::Tensor cross_entropy;  // [blocks, window − 1] float64
  std::vector<LayerTraffic> traffic;
};
absl::StatusOr<PointRun> RunAtPoint(const ModelWeights& model, const std::vector<CheapPaths>& paths,
                                    const std::vector<OperatingLayer>& point, int sinks, const SplitStream& split,
                                    Work& work);

// The point that all gates make when each logit is lowered by `shift`: thresholds
// sigmoid(shift) and, for a ladder, sigmoid(shift − its gap).
std::vector<OperatingLayer> ShiftedPoint(const std::vector<CheapPaths>& paths, double shift);

// The same point without gates that decide nothing: a layer that took one path for all but
// `slack` of its tokens takes it always.
std::vector<OperatingLayer> WithoutIdleGates(const std::vector<OperatingLayer>& point,
                                             const std::vector<LayerTraffic>& traffic, double slack = 0.005);

// "0.5%", "1%".
std::string BudgetName(double budget);

struct PointSearchOptions {
  std::vector<double> budgets;  // ascending
  int sinks = 4;
  int resamples = 10'000;
  uint64_t seed = 0;
};

// For each budget the point that saves most MLP work among those found whose cost on the
// selection split is within the budget, one standard error on top (at the estimate itself a
// budget would be broken half the time); its cost, interval and work saved are then measured
// on the report split.  Points are shifts of all gates together, found by bisection.  Where
// nothing can be saved within a budget its point runs in full.  REQUIRES: both splits have
// their full cross-entropies.
absl::StatusOr<std::vector<OperatingPoint>> FindOperatingPoints(const ModelWeights& model,
                                                                const std::vector<CheapPaths>& paths,
                                                                const PointSearchOptions& options,
                                                                const SplitStream& select, const SplitStream& report,
                                                                Work& work);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_OPERATING_POINTS_H_
