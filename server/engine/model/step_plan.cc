#include "server/engine/model/step_plan.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr int kMaxAlternatives = 20;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Every id is in [lowest, vocab).
absl::Status CheckIds(std::string_view field, std::span<const int32_t> ids, int32_t lowest, int vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!(ids[i] >= lowest && ids[i] < vocab)) {
      return absl::InvalidArgumentError(
          StrCat(field, "[", i, "] is ", ids[i], ", must be in [", lowest, ", ", vocab, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPolicy(const Row& row, const ModelWeights& model) {
  if (row.policy == nullptr) return absl::InvalidArgumentError("the row has no policy");
  if (row.policy->layers() != model.config.layers) {
    return absl::InvalidArgumentError(
        StrCat("the policy has ", row.policy->layers(), " layers, the model has ", model.config.layers));
  }
  const Calibration* calibration = row.policy->calibration().get();
  if (calibration != nullptr && calibration->info().model_fingerprint != model.fingerprint) {
    return absl::FailedPreconditionError("the policy's calibration is another model's");
  }
  if (calibration == nullptr && (row.records.nonlinearity || row.records.consensus || row.records.gate)) {
    return absl::FailedPreconditionError("nonlinearity, consensus and gate records need a calibration");
  }
  return absl::OkStatus();
}

absl::Status CheckInterventions(const Row& row, const ModelWeights& model) {
  if (row.interventions != nullptr) {
    if (row.interventions->layers() != model.config.layers) {
      return absl::InvalidArgumentError(StrCat("the interventions have ", row.interventions->layers(),
                                               " layers, the model has ", model.config.layers));
    }
    if (row.interventions->calibration() != nullptr && row.interventions->calibration() != row.policy->calibration()) {
      return absl::InvalidArgumentError("the interventions' calibration is not the policy's");
    }
  }
  for (const CaptureSite& capture : row.captures) {
    if (capture.layer >= 0 && capture.layer < model.config.layers) continue;
    return absl::InvalidArgumentError(
        StrCat("captures names layer ", capture.layer, ", must be in [0, ", model.config.layers, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckRow(const Row& row, const ModelWeights& model, const KvCache::View& view) {
  const int vocab = model.config.vocab_size;
  if (row.tokens.empty()) return absl::InvalidArgumentError("the row has no tokens");
  GH_RETURN_IF_ERROR(CheckIds("tokens", row.tokens, 0, vocab));
  if (!row.targets.empty() && row.targets.size() != row.tokens.size()) {
    return absl::InvalidArgumentError(StrCat("targets has ", row.targets.size(), " entries, must have one for each of ",
                                             row.tokens.size(), " tokens"));
  }
  GH_RETURN_IF_ERROR(CheckIds("targets", row.targets, -1, vocab));
  if (!(row.top_alternatives >= 0 && row.top_alternatives <= kMaxAlternatives)) {
    return absl::InvalidArgumentError(
        StrCat("top_alternatives is ", row.top_alternatives, ", must be in [0, ", kMaxAlternatives, "]"));
  }
  GH_RETURN_IF_ERROR(CheckPolicy(row, model));
  GH_RETURN_IF_ERROR(CheckInterventions(row, model));
  if (static_cast<int64_t>(row.tokens.size()) > view.max_tokens - view.length) {
    return absl::OutOfRangeError(StrCat("the sequence would have ", view.length + row.tokens.size(),
                                        " positions, it has room for ", view.max_tokens, " of the model's context of ",
                                        model.config.context));
  }
  return absl::OkStatus();
}

void SizeResult(const Row& row, int layers, RowResult& result) {
  for (auto* counts : {&result.linear_tokens, &result.ladder_tokens, &result.skip_tokens, &result.gated_tokens,
                       &result.quorum_tokens}) {
    counts->assign(layers, 0);
  }
  result.captured.resize(row.captures.size());
  if (!row.targets.empty()) {
    result.target_logprobs.assign(row.targets.size(), kNaN);
    if (row.top_alternatives > 0) result.target_top.resize(row.targets.size());
  }
  TokenRecords& records = result.records;
  if (!row.records.any()) return;
  records.tokens = static_cast<int>(row.tokens.size());
  records.layers = layers;
  const size_t entries = row.tokens.size() * layers;
  if (row.records.routing) {
    records.path.assign(entries, MlpPath::kFull);
    records.gate_margin.assign(entries, kNaN);
  }
  if (row.records.nonlinearity) records.nonlinearity.assign(entries, kNaN);
  if (row.records.nonlinearity || row.records.consensus) records.output_norm.assign(entries, kNaN);
  if (row.records.gate) records.gate_probability.assign(entries, kNaN);
  if (row.records.consensus) {
    records.level.assign(entries, -1);
    records.fired.assign(entries, 0);
    records.exceptions.assign(entries, 0);
  }
}

void AddTo(StepGroup& group, PlannedRow row) {
  row.first_row = group.total_rows;
  group.total_rows += row.rows;
  group.intervenes |= row.row->interventions != nullptr || !row.row->captures.empty();
  group.rows.push_back(row);
}

}  // namespace

std::vector<StepGroup> PlanStep(std::span<const Row> rows, const ModelWeights& model, const KvCache& cache,
                                std::span<RowResult> results) {
  StepGroup skinny;
  std::vector<StepGroup> groups;
  std::set<SequenceId> sequences;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    RowResult& result = results[i];
    if (!sequences.insert(row.sequence).second) {
      result.status = absl::InvalidArgumentError("another row of the step names the same sequence");
      continue;
    }
    const absl::StatusOr<KvCache::View> view = cache.Find(row.sequence);
    result.status = view.ok() ? CheckRow(row, model, *view) : view.status();
    if (!result.status.ok()) continue;
    PlannedRow planned{.row = &row,
                       .result = &result,
                       .rows = static_cast<int>(row.tokens.size()),
                       .first_position = view->length,
                       .pages = view->pages};
    if (planned.cancelled()) {
      result.status = absl::CancelledError("the row was cancelled");
      continue;
    }
    SizeResult(row, model.config.layers, result);
    if (planned.rows <= kSkinnyRows) {
      AddTo(skinny, planned);
    } else {
      groups.emplace_back().kind = RowGroup::kWide;
      AddTo(groups.back(), planned);
    }
  }
  if (!skinny.rows.empty()) groups.insert(groups.begin(), std::move(skinny));
  return groups;
}

}  // namespace gatehouse
