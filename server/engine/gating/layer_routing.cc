#include "server/engine/gating/layer_routing.h"

#include <bit>
#include <cmath>
#include <limits>

#include "server/engine/gating/firing.h"
#include "server/engine/gating/interventions.h"

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

// Asks the gates: p of every row that wants it, and the path of those it decides.
void AskGates(int layer, const at::Tensor& x, const std::vector<const RoutingPolicy*>& deciding, Kernels& kernels,
              LayerRouting& routing) {
  for (const CalibrationRows& rows : routing.by_calibration) {
    if (rows.asked.empty()) continue;
    const LoadedCalibration::Layer& gate = rows.calibration->layer(layer);
    const std::vector<float> logits = kernels.Dot(rows.asked.Gather(x), gate.gate_weight, gate.gate_bias);
    for (int64_t i = 0; i < rows.asked.size(); ++i) {
      const int64_t at = rows.asked[i];
      const float p = routing.probability[at] = Sigmoid(logits[i]);
      if (deciding[at] == nullptr || deciding[at]->rule(layer) != RoutingPolicy::Rule::kGated) continue;
      const OperatingLayer& thresholds = deciding[at]->thresholds(layer);
      routing.margin[at] = p - thresholds.linear_threshold;
      if (p > thresholds.linear_threshold) {
        routing.path[at] = MlpPath::kLinear;
      } else if (p > thresholds.ladder_threshold) {
        routing.path[at] = MlpPath::kLadder;
      }
    }
  }
}

// The quorum gate (methods B.9): full where fewer than q of the consensus neurons fire.
void AskQuorums(int layer, const at::Tensor& x, const StepGroup& group,
                const std::vector<const RoutingPolicy*>& deciding, const ModelConfig& config, Kernels& kernels,
                LayerRouting& routing) {
  for (const CalibrationRows& rows : routing.by_calibration) {
    if (rows.quorum.empty()) continue;
    at::Tensor activations = kernels.Linear(rows.quorum.Gather(x), *rows.calibration->layer(layer).consensus_in,
                                            GroupOfPart(group.kind, rows.quorum.size()));
    kernels.Activate(activations, config.activation);
    const std::vector<uint64_t> fired = FiringBits(activations);
    for (int64_t i = 0; i < rows.quorum.size(); ++i) {
      const int64_t at = rows.quorum[i];
      routing.quorum_fired[at] = fired[i];
      if (std::popcount(fired[i]) >= deciding[at]->quorum()) routing.path[at] = deciding[at]->quorum_path();
    }
  }
}

// Sets path, probability, margin and quorum of every row.
void Decide(int layer, const at::Tensor& x, const StepGroup& group, const ModelConfig& config, Kernels& kernels,
            LayerRouting& routing) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  routing.path.assign(group.total_rows, MlpPath::kFull);
  routing.probability.assign(group.total_rows, kNaN);
  routing.margin.assign(group.total_rows, kNaN);
  routing.quorum_fired.assign(group.total_rows, std::nullopt);
  // Of the rows that gates and quorums decide.
  std::vector<const RoutingPolicy*> deciding(group.total_rows, nullptr);
  for (const PlannedRow& row : group.rows) {
    const RoutingPolicy& policy = *row.row->policy;
    const RoutingPolicy::Rule rule = policy.rule(layer);
    const std::vector<std::optional<MlpPath>> forced = ForcedPaths(layer, row);
    for (int i = 0; i < row.rows; ++i) {
      const int at = row.first_row + i;
      const bool is_forced = !forced.empty() && forced[i].has_value(), decides = !is_forced && !IsSink(row, i);
      if (row.row->records.gate || (decides && rule == RoutingPolicy::Rule::kGated)) {
        RowsOf(policy, routing.by_calibration).asked.Add(at);
      }
      if (is_forced) routing.path[at] = *forced[i];
      if (!decides) continue;
      if (rule == RoutingPolicy::Rule::kGated || rule == RoutingPolicy::Rule::kQuorum) deciding[at] = &policy;
      if (rule == RoutingPolicy::Rule::kQuorum) RowsOf(policy, routing.by_calibration).quorum.Add(at);
      if (rule == RoutingPolicy::Rule::kLinear) routing.path[at] = MlpPath::kLinear;
      if (rule == RoutingPolicy::Rule::kLadder) routing.path[at] = MlpPath::kLadder;
    }
  }
  AskGates(layer, x, deciding, kernels, routing);
  AskQuorums(layer, x, group, deciding, config, kernels, routing);
}

// Sorts the rows by what has to be computed for them.
void Partition(const StepGroup& group, LayerRouting& routing) {
  for (const PlannedRow& row : group.rows) {
    const RecordRequest& records = row.row->records;
    for (int i = 0; i < row.rows; ++i) {
      const int at = row.first_row + i;
      if (records.nonlinearity || records.consensus) routing.norms.Add(at);
      if (routing.path[at] == MlpPath::kSkip) {
        routing.skip.Add(at);
        continue;
      }
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
    const RecordRequest& records = row.row->records;
    if (records.nonlinearity || records.consensus || records.gate) return false;
    if (group.intervenes && ChangesMlp(layer, row)) return false;
  }
  return true;
}

LayerRouting RouteLayer(int layer, const at::Tensor& x, const StepGroup& group, const ModelConfig& config,
                        Kernels& kernels) {
  LayerRouting routing;
  Decide(layer, x, group, config, kernels, routing);
  Partition(group, routing);
  return routing;
}

}  // namespace gatehouse
