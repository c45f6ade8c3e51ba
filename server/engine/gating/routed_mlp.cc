#include "server/engine/gating/routed_mlp.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "server/engine/gating/firing.h"
#include "server/engine/gating/interventions.h"

namespace gatehouse {
namespace {

constexpr float kNotScored = std::numeric_limits<float>::quiet_NaN();

}  // namespace

at::Tensor RoutedMlp::Run(int layer, const at::Tensor& x, const StepGroup& group) {
  if (IsPlain(layer, group)) {
    const LayerWeights& weights = model_.layers[layer];
    return kernels_.Linear(Hidden(x, weights.mlp_in, group.kind, nullptr), weights.mlp_out, group.kind);
  }
  const LayerRouting routing = RouteLayer(layer, x, group, model_.config, kernels_);
  const Computed computed = Compute(layer, x, group, routing);
  const Measurements measured = Measure(layer, x, computed, group, routing);
  for (const PlannedRow& row : group.rows) Record(layer, row, routing, measured);
  return computed.y;
}

RoutedMlp::Computed RoutedMlp::Compute(int layer, const at::Tensor& x, const StepGroup& group,
                                       const LayerRouting& routing) {
  Computed computed;
  const auto place = [&](const RowSet& rows, at::Tensor part) {
    if (rows.size() == group.total_rows) {
      computed.y = std::move(part);
    } else {
      if (!computed.y.defined()) computed.y = at::empty_like(x);
      rows.Scatter(part, computed.y);
    }
  };
  if (!routing.full.empty()) {
    bool wants_activations = false;
    for (const CalibrationRows& rows : routing.by_calibration) wants_activations |= !rows.consensus.empty();
    place(routing.full, Full(layer, x, group, routing.full, wants_activations ? &computed.activations : nullptr));
  }
  if (!routing.skip.empty()) place(routing.skip, at::zeros({routing.skip.size(), x.size(1)}, x.options()));
  for (const CalibrationRows& rows : routing.by_calibration) {
    if (!rows.linear.empty()) place(rows.linear, Surrogate(layer, x, group, *rows.calibration, rows.linear));
    if (!rows.ladder.empty()) place(rows.ladder, Ladder(x, group, *rows.calibration->layer(layer).ladder, rows.ladder));
  }
  return computed;
}

RoutedMlp::Measurements RoutedMlp::Measure(int layer, const at::Tensor& x, const Computed& computed,
                                           const StepGroup& group, const LayerRouting& routing) {
  Measurements measured;
  if (routing.norms.empty()) return measured;
  measured.nonlinearity.assign(group.total_rows, kNotScored);
  measured.norm.assign(group.total_rows, kNotScored);
  measured.fired.assign(group.total_rows, 0);
  measured.exceptions.assign(group.total_rows, 0);
  const std::vector<float> norms = kernels_.RowNorms(routing.norms.Gather(computed.y));
  for (int64_t i = 0; i < routing.norms.size(); ++i) measured.norm[routing.norms[i]] = norms[i];
  for (const CalibrationRows& rows : routing.by_calibration) {
    if (!rows.nonlinearity.empty()) {
      const at::Tensor surrogate = Surrogate(layer, x, group, *rows.calibration, rows.nonlinearity);
      const std::vector<float> residual = kernels_.RowNorms(rows.nonlinearity.Gather(computed.y), &surrogate);
      for (int64_t i = 0; i < rows.nonlinearity.size(); ++i) measured.nonlinearity[rows.nonlinearity[i]] = residual[i];
    }
    if (!rows.consensus.empty()) {
      const LoadedCalibration::Layer& calibrated = rows.calibration->layer(layer);
      const at::Tensor activations = rows.consensus.Gather(computed.activations);
      const std::vector<uint64_t> fired = FiringBits(at::index_select(activations, 1, calibrated.consensus_rows));
      const std::vector<uint64_t> exceptions = FiringBits(at::index_select(activations, 1, calibrated.exception_rows));
      for (int64_t i = 0; i < rows.consensus.size(); ++i) {
        const int64_t at = routing.full[rows.consensus[i]];
        measured.fired[at] = fired[i];
        measured.exceptions[at] = exceptions[i];
      }
    }
  }
  return measured;
}

void RoutedMlp::Record(int layer, const PlannedRow& row, const LayerRouting& routing, const Measurements& measured) {
  TokenRecords& records = row.result->records;
  for (int i = 0; i < row.rows; ++i) {
    const int at = row.first_row + i;
    const MlpPath path = routing.path[at];
    if (path == MlpPath::kLinear) ++row.result->linear_tokens[layer];
    if (path == MlpPath::kLadder) ++row.result->ladder_tokens[layer];
    if (path == MlpPath::kSkip) ++row.result->skip_tokens[layer];
    if (!std::isnan(routing.margin[at])) ++row.result->gated_tokens[layer];
    if (routing.quorum_fired[at].has_value()) ++row.result->quorum_tokens[layer];
    const size_t cell = static_cast<size_t>(i) * records.layers + layer;
    if (row.row->records.routing) {
      records.path[cell] = path;
      records.gate_margin[cell] = routing.margin[at];
    }
    if (row.row->records.nonlinearity) records.nonlinearity[cell] = measured.nonlinearity[at];
    if (row.row->records.nonlinearity || row.row->records.consensus) records.output_norm[cell] = measured.norm[at];
    if (row.row->records.gate) records.gate_probability[cell] = routing.probability[at];
    if (!row.row->records.consensus) continue;
    if (path == MlpPath::kFull) {
      records.fired[cell] = measured.fired[at];
      records.exceptions[cell] = measured.exceptions[at];
    } else if (routing.quorum_fired[at].has_value()) {
      records.fired[cell] = *routing.quorum_fired[at];
    } else {
      continue;
    }
    records.level[cell] = static_cast<int16_t>(std::popcount(records.fired[cell]));
  }
}

at::Tensor RoutedMlp::Surrogate(int layer, const at::Tensor& x, const StepGroup& group,
                                const LoadedCalibration& calibration, const RowSet& rows) {
  return kernels_.Linear(rows.Gather(x), calibration.layer(layer).surrogate, GroupOfPart(group.kind, rows.size()));
}

at::Tensor RoutedMlp::Ladder(const at::Tensor& x, const StepGroup& group, const LoadedCalibration::Ladder& ladder,
                             const RowSet& rows) {
  const RowGroup part = GroupOfPart(group.kind, rows.size());
  const at::Tensor inputs = rows.Gather(x);
  return kernels_.Linear(at::cat({inputs, Hidden(inputs, ladder.in, part, nullptr)}, 1), ladder.joint, part);
}

at::Tensor RoutedMlp::Hidden(const at::Tensor& x, const LinearWeights& in, RowGroup group, at::Tensor* activations) {
  at::Tensor hidden = kernels_.Linear(x, in, group);
  if (model_.config.gated_mlp) return kernels_.GatedActivate(hidden, model_.config.activation, activations);
  kernels_.Activate(hidden, model_.config.activation);
  if (activations != nullptr) *activations = hidden;
  return hidden;
}

at::Tensor RoutedMlp::Full(int layer, const at::Tensor& x, const StepGroup& group, const RowSet& full,
                           at::Tensor* activations) {
  const LayerWeights& weights = model_.layers[layer];
  const RowGroup part = GroupOfPart(group.kind, full.size());
  at::Tensor neurons = Hidden(full.Gather(x), weights.mlp_in, part, activations);
  if (group.intervenes) {
    if (activations != nullptr && activations->is_same(neurons)) *activations = neurons.clone();
    PassSite(layer, ActivationSite::kNeurons, group, neurons, &full);
  }
  return kernels_.Linear(neurons, weights.mlp_out, part);
}

}  // namespace gatehouse
