#include "server/engine/model/output_head.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "server/engine/gating/row_set.h"

namespace gatehouse {
namespace {

// Positions whose logits are in memory at once.
constexpr size_t kLogitRows = 64;

bool IsLive(const PlannedRow& row) { return row.result->status.ok() && !row.cancelled(); }

}  // namespace

void OutputHead::Run(const at::Tensor& residual, const StepGroup& group) {
  FindNonFinite(residual, group);
  std::vector<Wanted> samples, targets;
  for (const PlannedRow& row : group.rows) {
    if (!IsLive(row)) continue;
    if (row.row->sampling != nullptr) samples.push_back({&row, row.rows - 1});
    for (int i = 0; i < static_cast<int>(row.row->targets.size()); ++i) {
      if (row.row->targets[i] >= 0) targets.push_back({&row, i});
    }
  }
  const auto run = [&](std::span<const Wanted> wanted, bool sample) {
    for (size_t first = 0; first < wanted.size(); first += kLogitRows) {
      RunSlice(residual, group.kind, wanted.subspan(first, std::min(kLogitRows, wanted.size() - first)), sample);
    }
  };
  run(targets, false);
  run(samples, true);
}

void OutputHead::FindNonFinite(const at::Tensor& residual, const StepGroup& group) {
  const std::vector<float> norms = kernels_.RowNorms(residual);
  for (const PlannedRow& row : group.rows) {
    for (int i = 0; i < row.rows; ++i) {
      if (std::isfinite(norms[row.first_row + i])) continue;
      row.result->status = absl::InternalError("the model produced a number that is not finite");
      break;
    }
  }
}

void OutputHead::RunSlice(const at::Tensor& residual, RowGroup kind, std::span<const Wanted> slice, bool sample) {
  if (std::none_of(slice.begin(), slice.end(), [](const Wanted& wanted) { return IsLive(*wanted.row); })) return;
  RowSet rows;
  for (const Wanted& wanted : slice) rows.Add(wanted.row->first_row + wanted.offset);
  const at::Tensor hidden =
      kernels_.Norm(rows.Gather(residual), model_.final_norm, model_.config.norm, model_.config.norm_eps);
  // A library's product in bfloat16 would round logits to it, which alone moves
  // log-probabilities by 0.02; ours keeps float32.
  const bool wide = model_.output.weight.scalar_type() == at::kFloat;
  const at::Tensor logits =
      kernels_.Linear(hidden, model_.output, wide ? GroupOfPart(kind, rows.size()) : RowGroup::kSkinny);
  if (sample) {
    Sample(logits, slice);
  } else {
    Score(logits, slice);
  }
}

void OutputHead::Sample(const at::Tensor& logits, std::span<const Wanted> slice) {
  for (size_t i = 0; i < slice.size(); ++i) {
    const PlannedRow& row = *slice[i].row;
    if (!IsLive(row)) continue;
    absl::StatusOr<SampledToken> sampled =
        kernels_.Sample(logits[static_cast<int64_t>(i)], *row.row->sampling, row.row->top_alternatives);
    if (sampled.ok()) {
      row.result->sampled = *std::move(sampled);
    } else {
      row.result->status = sampled.status();
    }
  }
}

void OutputHead::Score(const at::Tensor& logits, std::span<const Wanted> slice) {
  // Rows are scored one after another, so that one's failure is not another's.
  for (size_t first = 0, last = 0; first < slice.size(); first = last) {
    const PlannedRow& row = *slice[first].row;
    std::vector<int32_t> targets;
    for (last = first; last < slice.size() && slice[last].row == &row; ++last) {
      targets.push_back(row.row->targets[slice[last].offset]);
    }
    if (!IsLive(row)) continue;
    absl::StatusOr<Kernels::TargetLogprobs> scored =
        kernels_.Logprobs(logits.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(last - first)), targets,
                          row.row->top_alternatives);
    if (!scored.ok()) {
      row.result->status = scored.status();
      continue;
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      const int offset = slice[first + i].offset;
      row.result->target_logprobs[offset] = scored->logprobs[i];
      if (row.row->top_alternatives > 0) row.result->target_top[offset] = std::move(scored->top[i]);
    }
  }
}

}  // namespace gatehouse
