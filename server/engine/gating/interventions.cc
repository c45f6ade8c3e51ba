#include "server/engine/gating/interventions.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>
#include <variant>

#include "server/engine/gating/loaded_calibration.h"

namespace gatehouse {
namespace {

// The part of a row that a list of positions means: its offset in the row, and its place in
// the list (0 where the list is empty, which means all).
struct Hit {
  int offset = 0;
  int64_t entry = 0;
};

// positions: ascending.
std::vector<Hit> HitsOf(std::span<const int> positions, const PlannedRow& row) {
  std::vector<Hit> hits;
  if (positions.empty()) {
    for (int i = 0; i < row.rows; ++i) hits.push_back({i, 0});
    return hits;
  }
  const int first = row.first_position + row.row->position_offset;
  for (auto at = std::lower_bound(positions.begin(), positions.end(), first);
       at != positions.end() && *at < first + row.rows; ++at) {
    hits.push_back({*at - first, at - positions.begin()});
  }
  return hits;
}

std::span<const Intervention* const> ChangesOf(int layer, const PlannedRow& row) {
  if (row.row->interventions == nullptr) return {};
  return row.row->interventions->at(layer);
}

bool IsAtNeurons(const Intervention& intervention) {
  if (const auto* patch = std::get_if<Patch>(&intervention.change)) return patch->site == ActivationSite::kNeurons;
  return std::holds_alternative<NeuronChange>(intervention.change);
}

at::Tensor Indices(const std::vector<int64_t>& values, const at::Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

// Changes made at a site, and copies taken there.
class SitePass {
 public:
  SitePass(int layer, ActivationSite site, const StepGroup& group, at::Tensor& activations, const RowSet* of)
      : layer_(layer), site_(site), activations_(activations) {
    if (of == nullptr) return;
    indices_.assign(group.total_rows, -1);
    for (int64_t i = 0; i < of->size(); ++i) indices_[(*of)[i]] = i;
  }

  void Change(const PlannedRow& row, const Intervention& intervention) {
    if (const auto* patch = std::get_if<Patch>(&intervention.change)) {
      if (patch->site == site_) Put(Present(row, intervention.positions), *patch);
    } else if (const auto* change = std::get_if<NeuronChange>(&intervention.change)) {
      if (site_ == ActivationSite::kNeurons) Apply(Present(row, intervention.positions), *change, row);
    }
  }

  void Capture(const PlannedRow& row, const CaptureSite& capture, CapturedSite& captured) {
    if (capture.layer != layer_ || capture.site != site_) return;
    const Targets targets = Present(row, capture.positions);
    if (targets.rows.empty()) return;
    captured.positions = targets.positions;
    const at::Tensor values =
        at::index_select(activations_, 0, Indices(targets.rows, activations_)).to(at::kCPU).contiguous();
    captured.values.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  }

 private:
  // Rows of the activations, with their positions and their entries in a list of positions.
  struct Targets {
    std::vector<int64_t> rows, entries;
    std::vector<int> positions;
  };

  Targets Present(const PlannedRow& row, std::span<const int> positions) const {
    Targets targets;
    for (const Hit& hit : HitsOf(positions, row)) {
      const int64_t at = row.first_row + hit.offset;
      const int64_t index = indices_.empty() ? at : indices_[at];
      if (index < 0) continue;
      targets.rows.push_back(index);
      targets.entries.push_back(hit.entry);
      targets.positions.push_back(row.first_position + row.row->position_offset + hit.offset);
    }
    return targets;
  }

  void Put(const Targets& targets, const Patch& patch) {
    if (targets.rows.empty()) return;
    const int64_t width = activations_.size(1), vectors = static_cast<int64_t>(patch.values.size()) / width;
    at::Tensor values = at::from_blob(const_cast<float*>(patch.values.data()), {vectors, width}, at::kFloat);
    const int64_t count = static_cast<int64_t>(targets.rows.size());
    values = vectors == 1 ? values.expand({count, width})
                          : at::index_select(values, 0, at::tensor(targets.entries, at::kLong));
    activations_.index_copy_(0, Indices(targets.rows, activations_), values.to(activations_.device()));
  }

  void Apply(const Targets& targets, const NeuronChange& change, const PlannedRow& row) {
    if (targets.rows.empty()) return;
    const at::Tensor neurons = Indices({change.neurons.begin(), change.neurons.end()}, activations_);
    const at::Tensor rows = Indices(targets.rows, activations_).unsqueeze(1);
    const std::initializer_list<at::indexing::TensorIndex> cells = {rows, neurons.unsqueeze(0)};
    switch (change.kind) {
      case NeuronChange::Kind::kScale:
        activations_.index_put_(cells, activations_.index(cells).mul_(change.value));
        break;
      case NeuronChange::Kind::kSet:
        activations_.index_put_(cells, at::Scalar(change.value));
        break;
      case NeuronChange::Kind::kMean:
        activations_.index_put_(cells, LoadedCalibration::From(*row.row->interventions->calibration())
                                           .layer(layer_)
                                           .neuron_mean.index_select(0, neurons));
        break;
    }
  }

  const int layer_;
  const ActivationSite site_;
  at::Tensor& activations_;
  std::vector<int64_t> indices_;  // of the group's rows in the activations, −1 where absent; empty: all are there
};

}  // namespace

bool ChangesMlp(int layer, const PlannedRow& row) {
  for (const Intervention* intervention : ChangesOf(layer, row)) {
    const auto* patch = std::get_if<Patch>(&intervention->change);
    if (patch == nullptr || patch->site == ActivationSite::kNeurons) return true;
  }
  return std::any_of(row.row->captures.begin(), row.row->captures.end(), [layer](const CaptureSite& capture) {
    return capture.layer == layer && capture.site == ActivationSite::kNeurons;
  });
}

std::vector<std::optional<MlpPath>> ForcedPaths(int layer, const PlannedRow& row) {
  if (!ChangesMlp(layer, row)) return {};
  std::vector<std::optional<MlpPath>> paths(row.rows);
  for (const CaptureSite& capture : row.row->captures) {
    if (capture.layer != layer || capture.site != ActivationSite::kNeurons) continue;
    for (const Hit& hit : HitsOf(capture.positions, row)) paths[hit.offset] = MlpPath::kFull;
  }
  for (const Intervention* intervention : ChangesOf(layer, row)) {
    std::optional<MlpPath> path;
    if (const auto* force = std::get_if<ForcePath>(&intervention->change)) path = force->path;
    if (std::holds_alternative<ZeroMlp>(intervention->change)) path = MlpPath::kSkip;
    if (IsAtNeurons(*intervention)) path = MlpPath::kFull;
    if (!path) continue;
    for (const Hit& hit : HitsOf(intervention->positions, row)) paths[hit.offset] = path;
  }
  return paths;
}

void PassSite(int layer, ActivationSite site, const StepGroup& group, at::Tensor& activations, const RowSet* of) {
  if (!group.intervenes) return;
  SitePass pass(layer, site, group, activations, of);
  for (const PlannedRow& row : group.rows) {
    for (const Intervention* intervention : ChangesOf(layer, row)) pass.Change(row, *intervention);
    for (size_t i = 0; i < row.row->captures.size(); ++i) {
      pass.Capture(row, row.row->captures[i], row.result->captured[i]);
    }
  }
}

}  // namespace gatehouse
