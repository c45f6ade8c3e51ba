#include "server/engine/gating/layer_routing.h"

#include <cmath>
#include <limits>

namespace gatehouse {
namespace {

CalibrationRows& RowsOf(const RoutingPolicy& policy, std::vector<CalibrationRows>& by_calibration) {
  const LoadedCalibration* calibration = &LoadedCalibration::From(*policy.calibration());
  for (CalibrationRows& rows : by_calibration) {
    if (rows.calibration == calibration) return rows;
  }
  by_calibration.emplace_back().calibration = calibration;
  return by_calibration.back();
}

bool IsSink(const PlannedRow& row, int offset) {
  return row.first_position + offset < row.row->policy->sink_positions();
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Sets path and margin of every row.
void Decide(int layer, const at::Tensor& x, const StepGroup& group, Kernels& kernels, LayerRouting& routing) {
  routing.path.assign(group.total_rows, MlpPath::kFull);
  routing.margin.assign(group.total_rows, std::numeric_limits<float>::quiet_NaN());
  std::vector<const OperatingLayer*> thresholds(group.total_rows, nullptr);  // of gated rows
  for (const PlannedRow& row : group.rows) {
    const RoutingPolicy& policy = *row.row->policy;
    const RoutingPolicy::Rule rule = policy.rule(layer);
    if (rule == RoutingPolicy::Rule::kFull) continue;
    for (int i = 0; i < row.rows; ++i) {
      if (IsSink(row, i)) continue;
      const int at = row.first_row + i;
      if (rule == RoutingPolicy::Rule::kGated) {
        thresholds[at] = &policy.thresholds(layer);
        RowsOf(policy, routing.by_calibration).gated.Add(at);
      } else {
        routing.path[at] = rule == RoutingPolicy::Rule::kLinear ? MlpPath::kLinear : MlpPath::kLadder;
      }
    }
  }
  for (const CalibrationRows& rows : routing.by_calibration) {
    const LoadedCalibration::Layer& gate = rows.calibration->layer(layer);
    const std::vector<float> logits = kernels.Dot(rows.gated.Gather(x), gate.gate_weight, gate.gate_bias);
    for (int64_t i = 0; i < rows.gated.size(); ++i) {
      const int64_t at = rows.gated[i];
      const float p = Sigmoid(logits[i]);
      routing.margin[at] = p - thresholds[at]->linear_threshold;
      if (p > thresholds[at]->linear_threshold) {
        routing.path[at] = MlpPath::kLinear;
      } else if (p > thresholds[at]->ladder_threshold) {
        routing.path[at] = MlpPath::kLadder;
      }
    }
  }
}

// Sorts the rows by what has to be computed for them.
void Partition(const StepGroup& group, LayerRouting& routing) {
  for (const PlannedRow& row : group.rows) {
    const RecordRequest& records = row.row->records;
    for (int i = 0; i < row.rows; ++i) {
      const int at = row.first_row + i;
      if (records.nonlinearity || records.consensus) routing.norms.Add(at);
      if (routing.path[at] != MlpPath::kFull) {
        CalibrationRows& calibrated = RowsOf(*row.row->policy, routing.by_calibration);
        (routing.path[at] == MlpPath::kLinear ? calibrated.linear : calibrated.ladder).Add(at);
        continue;
      }
      if (records.nonlinearity) RowsOf(*row.row->policy, routing.by_calibration).nonlinearity.Add(at);
      if (records.consensus) RowsOf(*row.row->policy, routing.by_calibration).consensus.Add(routing.full.size());
      routing.full.Add(at);
    }
  }
}

}  // namespace

bool IsPlain(int layer, const StepGroup& group) {
  for (const PlannedRow& row : group.rows) {
    if (row.row->policy->rule(layer) != RoutingPolicy::Rule::kFull) return false;
    if (row.row->records.nonlinearity || row.row->records.consensus) return false;
  }
  return true;
}

LayerRouting RouteLayer(int layer, const at::Tensor& x, const StepGroup& group, Kernels& kernels) {
  LayerRouting routing;
  Decide(layer, x, group, kernels, routing);
  Partition(group, routing);
  return routing;
}

}  // namespace gatehouse
