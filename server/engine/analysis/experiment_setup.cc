#include "server/engine/analysis/experiment_setup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

// Below this many, an interval says little of the tails.
constexpr int64_t kFewBlocks = 20;

CalibrateOptions SplitOptions(const ExperimentOptions& options) {
  CalibrateOptions splits;
  splits.fit_tokens = options.fit_tokens;
  splits.gate_tokens = options.gate_tokens;
  splits.select_tokens = options.select_tokens;
  splits.report_tokens = options.report_tokens;
  splits.window_tokens = options.window_tokens;
  splits.sink_positions = options.sink_positions;
  splits.seed = options.seed;
  return splits;
}

int64_t TokensOf(const CorpusPlan& plan, const std::vector<int64_t>& blocks) {
  return static_cast<int64_t>(blocks.size()) * plan.splits.window;
}

}  // namespace

std::vector<int64_t> CorpusPlan::HeldOut() const {
  std::vector<int64_t> blocks = splits.gate;
  blocks.insert(blocks.end(), splits.select.begin(), splits.select.end());
  blocks.insert(blocks.end(), splits.report.begin(), splits.report.end());
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

absl::StatusOr<std::vector<CorpusPlan>> PlanCorpora(const ExperimentContext& context) {
  std::vector<CorpusPlan> plans;
  std::set<std::string> names;
  for (const Corpus& corpus : context.corpora) {
    const std::string number = StrCat("corpus ", plans.size() + 1);
    std::string name = corpus.label.empty() ? number : corpus.label;
    if (!names.insert(name).second) name = StrCat(name, " (", number, ")");
    absl::StatusOr<CorpusSplits> splits =
        PlanSplits(SplitOptions(context.options), static_cast<int64_t>(corpus.tokens.size()), context.model.config);
    if (!splits.ok()) return Annotate(splits.status(), name);
    GH_RETURN_IF_ERROR(Annotate(CheckIntervalsExist(*splits), name));
    GH_RETURN_IF_ERROR(Annotate(CheckVariety(corpus.tokens), name));
    plans.push_back({&corpus, std::move(name), *std::move(splits)});
  }
  return plans;
}

std::vector<int> ChosenLayers(const ExperimentContext& context) {
  std::vector<int> layers = context.options.layers;
  if (layers.empty()) {
    layers.resize(context.model.config.layers);
    std::iota(layers.begin(), layers.end(), 0);
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

absl::Status ForLayers(const std::vector<int>& layers, std::span<SplitStream* const> streams, std::string_view stage,
                       Work& work, const LayerFn& study, const LayerFn& before) {
  size_t studied = 0;
  for (int layer = 0; studied < layers.size(); ++layer) {
    const bool chosen = layer == layers[studied];
    work.SetStage(StrCat(stage, ": layer ", layers[studied], ", ", studied + 1, " of ", layers.size()));
    if (chosen && before) GH_RETURN_IF_ERROR(before(layer));
    for (SplitStream* stream : streams) GH_RETURN_IF_ERROR(stream->Enter(layer, work));
    if (chosen) {
      absl::Status status = study(layer);
      // What the numbers of a model make impossible is no fault of the request.
      if (absl::IsFailedPrecondition(status)) status = absl::InternalError(status.message());
      GH_RETURN_IF_ERROR(Annotate(status, StrCat("layer ", layer)));
      if (++studied == layers.size()) break;
    }
    for (SplitStream* stream : streams) GH_RETURN_IF_ERROR(stream->Leave(work));
  }
  return absl::OkStatus();
}

double PassingWork(const std::vector<int>& layers) { return 2.0 * layers.back() + 1; }

absl::Status MeasureFullModel(SplitStream& split, Work& work) {
  GH_RETURN_IF_ERROR(split.MeasureFull(work));
  if (!split.full_cross_entropy().isfinite().all().item<bool>()) {
    return absl::InternalError("the model's cross-entropy on the corpus is not finite");
  }
  return absl::OkStatus();
}

void DescribeProtocol(const ExperimentContext& context, std::span<const CorpusPlan> plans, Report& report) {
  const ExperimentOptions& options = context.options;
  auto& settings = report.settings;
  settings.emplace_back("layers", absl::StrJoin(ChosenLayers(context), ", "));
  for (const CorpusPlan& plan : plans) {
    const CorpusSplits& splits = plan.splits;
    const std::string of = plans.size() == 1 ? "" : StrCat(", ", plan.name);
    settings.emplace_back(
        StrCat("splits", of),
        StrCat("fit ", TokensOf(plan, splits.fit), ", gate ", TokensOf(plan, splits.gate), ", select ",
               TokensOf(plan, splits.select), ", report ", TokensOf(plan, splits.report), " tokens"));
  }
  settings.emplace_back("window_tokens", StrCat(plans.front().splits.window));
  settings.emplace_back("sink_positions", StrCat(options.sink_positions));
  settings.emplace_back("ridge", StrCat(options.ridge));
  settings.emplace_back("bootstrap", StrCat(options.bootstrap_resamples, " resamples of whole blocks, 95 %, paired"));
  settings.emplace_back("seed", StrCat(options.seed));
  settings.emplace_back("d_model", StrCat(context.model.config.d_model));
  report.notes.push_back(
      StrCat("The first ", options.sink_positions,
             " positions of each block are sinks: they run in full and are left out of fits, unless a column says "
             "otherwise. Fits also leave out tokens whose MLP output is over 20 times the layer's median."));
  for (const CorpusPlan& plan : plans) {
    const auto blocks = static_cast<int64_t>(plan.splits.report.size());
    if (blocks >= kFewBlocks) continue;
    report.notes.push_back(StrCat("The report split of ", plan.name, " has ", blocks,
                                  " blocks; intervals from so few are rough and rather too narrow. More report_tokens "
                                  "or a smaller window give more."));
  }
}

std::string SeriesName(std::span<const CorpusPlan> plans, const CorpusPlan& plan, std::string_view within) {
  return plans.size() == 1 ? std::string(within) : StrCat(within, ", ", plan.name);
}

}  // namespace gatehouse
