#include "server/engine/analysis/operating_points.h"

#include <ATen/ops/item.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

// Shifts at which practically no token and practically every token is cheap, and how often
// the range between them is halved.
constexpr double kLeastShift = -4, kMostShift = 12;
constexpr int kHalvings = 7;

float Threshold(double logit) { return static_cast<float>(1 / (1 + std::exp(-logit))); }

// Points on the selection split, each run once.
class PointSearch {
 public:
  struct Found {
    std::vector<OperatingLayer> point;
    double cost = 0;  // one standard error above the estimate
    double work_saved = 0;
  };

  PointSearch(const ModelWeights& model, const std::vector<CheapPaths>& paths, const PointSearchOptions& options,
              const SplitStream& select, Work& work)
      : model_(model),
        paths_(paths),
        shape_(WorkShape(model.config)),
        options_(options),
        select_(select),
        work_(work) {}

  // The point that saves most within a budget.
  absl::StatusOr<std::vector<OperatingLayer>> Within(double budget) {
    double cheap = kMostShift, dear = kLeastShift;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = std::midpoint(cheap, dear);
      GH_ASSIGN_OR_RETURN(const Found found, At(middle));
      (found.cost <= budget ? cheap : dear) = middle;
    }
    Found best{std::vector<OperatingLayer>(paths_.size()), 0, 0};  // in full
    for (const auto& [shift, found] : found_) {
      if (found.cost <= budget && found.work_saved > best.work_saved) best = found;
    }
    return best.point;
  }

 private:
  absl::StatusOr<Found> At(double shift) {
    if (const auto known = found_.find(shift); known != found_.end()) return known->second;
    const std::vector<OperatingLayer> shifted = ShiftedPoint(paths_, shift);
    GH_ASSIGN_OR_RETURN(Found found, Measure(shifted));
    return found_[shift] = std::move(found);
  }

  // The point without its idle gates.
  absl::StatusOr<Found> Measure(const std::vector<OperatingLayer>& point) {
    GH_ASSIGN_OR_RETURN(PointRun run, RunAtPoint(model_, paths_, point, options_.sinks, select_, work_));
    Found found{WithoutIdleGates(point, run.traffic), 0, 0};
    if (found.point != point) {
      GH_ASSIGN_OR_RETURN(run, RunAtPoint(model_, paths_, found.point, options_.sinks, select_, work_));
    }
    const Interval cost =
        BootstrapPerplexityChange(select_.full_cross_entropy(), run.cross_entropy, options_.resamples, options_.seed);
    found.cost = cost.estimate + (cost.high - cost.estimate) / 2;
    found.work_saved = MlpWorkSaved(shape_, run.traffic);
    return found;
  }

  const ModelWeights& model_;
  const std::vector<CheapPaths>& paths_;
  const ModelInfo shape_;
  const PointSearchOptions& options_;
  const SplitStream& select_;
  Work& work_;
  std::map<double, Found> found_;  // by shift
};

bool HasName(const std::vector<OperatingPoint>& points, const std::string& name) {
  return std::any_of(points.begin(), points.end(), [&](const OperatingPoint& point) { return point.name == name; });
}

}  // namespace

absl::StatusOr<PointRun> RunAtPoint(const ModelWeights& model, const std::vector<CheapPaths>& paths,
                                    const std::vector<OperatingLayer>& point, int sinks, const SplitStream& split,
                                    Work& work) {
  GatedMlps mlps(model, paths, point, sinks);
  PointRun run;
  GH_ASSIGN_OR_RETURN(
      run.cross_entropy,
      split.CrossEntropyThrough([&](int layer, const at::Tensor& x) { return mlps.Write(layer, x); }, work));
  run.traffic = mlps.traffic();
  return run;
}

std::vector<OperatingLayer> ShiftedPoint(const std::vector<CheapPaths>& paths, double shift) {
  std::vector<OperatingLayer> point(paths.size());
  for (size_t layer = 0; layer < paths.size(); ++layer) {
    point[layer].linear_threshold = Threshold(shift);
    if (paths[layer].ladder_neurons.defined()) {
      point[layer].ladder_threshold = Threshold(shift - paths[layer].ladder_gap.item<double>());
    }
  }
  return point;
}

std::vector<OperatingLayer> WithoutIdleGates(const std::vector<OperatingLayer>& point,
                                             const std::vector<LayerTraffic>& traffic, double slack) {
  constexpr float kNever = 1, kAlways = -1;
  std::vector<OperatingLayer> result = point;
  for (size_t layer = 0; layer < point.size(); ++layer) {
    const LayerTraffic& of = traffic[layer];
    const double nearly_all = (1 - slack) * static_cast<double>(of.gated);
    if (of.gated == 0) continue;
    if (static_cast<double>(of.linear) >= nearly_all) {
      result[layer] = {kAlways, kNever};
    } else if (static_cast<double>(of.ladder) >= nearly_all) {
      result[layer] = {kNever, kAlways};
    } else if (static_cast<double>(of.gated - of.linear - of.ladder) >= nearly_all) {
      result[layer] = {kNever, kNever};
    }
  }
  return result;
}

std::string BudgetName(double budget) { return absl::StrFormat("%g%%", 100 * budget); }

absl::StatusOr<std::vector<OperatingPoint>> FindOperatingPoints(const ModelWeights& model,
                                                                const std::vector<CheapPaths>& paths,
                                                                const PointSearchOptions& options,
                                                                const SplitStream& select, const SplitStream& report,
                                                                Work& work) {
  PointSearch search(model, paths, options, select, work);
  const ModelInfo shape = WorkShape(model.config);
  std::vector<OperatingPoint> points;
  for (const double budget : options.budgets) {
    OperatingPoint point;
    point.name = BudgetName(budget);
    if (HasName(points, point.name)) continue;
    point.budget = budget;
    work.SetStage("operating point " + point.name);
    GH_ASSIGN_OR_RETURN(point.layers, search.Within(budget));
    GH_ASSIGN_OR_RETURN(const PointRun run, RunAtPoint(model, paths, point.layers, options.sinks, report, work));
    const Interval cost =
        BootstrapPerplexityChange(report.full_cross_entropy(), run.cross_entropy, options.resamples, options.seed);
    point.cost = cost.estimate;
    point.cost_low = cost.low;
    point.cost_high = cost.high;
    point.work_saved = MlpWorkSaved(shape, run.traffic);
    LayerTraffic sum;
    for (const LayerTraffic& layer : run.traffic) {
      sum.full += layer.full;
      sum.linear += layer.linear;
      sum.ladder += layer.ladder;
    }
    const auto tokens = static_cast<double>(sum.full + sum.linear + sum.ladder);
    point.linear_fraction = static_cast<double>(sum.linear) / tokens;
    point.ladder_fraction = static_cast<double>(sum.ladder) / tokens;
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace gatehouse
