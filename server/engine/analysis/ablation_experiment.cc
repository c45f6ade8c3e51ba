#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/item.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/ablation_report.h"
#include "server/engine/analysis/consensus_trace.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

// Causal validation ("The Discrete Charm of the MLP", methods B.7): the MLP of a layer writes
// nothing, and what that does to each token is grouped by how many of the layer's consensus
// neurons fire there.

constexpr Interval kNoInterval{kNone, kNone, kNone};

// What a change did to each token: [blocks, window − 1] float64.
struct Damage {
  at::Tensor cross_entropy;
  at::Tensor kl;  // KL(full ‖ changed)
};

// A split beside what leaves the full model's last layer on it, so that the predictions of a
// changed model can be compared with the full model's without running that again.
class FullModel {
 public:
  FullModel(const ModelWeights& model, const SplitStream& split)
      : model_(model), split_(split), last_(at::empty_like(split.residual())) {}

  absl::Status Measure(Work& work) {
    const int layers = model_.config.layers;
    GH_RETURN_IF_ERROR(split_.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
      GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * split_.window() * (layers + 1))));
      const at::Tensor ids = split_.ids().narrow(0, first, count);
      last_.narrow(0, first, count).copy_(PlainLayers(model_, PlainEmbed(model_, ids), 0, layers));
      return absl::OkStatus();
    }));
    cross_entropy_ = DamageOf(0, last_).cross_entropy;
    if (cross_entropy_.isfinite().all().item<bool>()) return absl::OkStatus();
    return absl::InternalError("the model's cross-entropy on the corpus is not finite");
  }

  // [blocks, window − 1] float64.
  const at::Tensor& cross_entropy() const { return cross_entropy_; }

  // The entered layer's MLP writes nothing where `zeroed`, [blocks, window] bool.
  absl::StatusOr<Damage> Without(int layer, const at::Tensor& zeroed, Work& work) const {
    Damage damage{at::empty_like(cross_entropy_), at::empty_like(cross_entropy_)};
    int64_t block = 0;  // the batches come in order
    const auto write = [&](const at::Tensor& x) {
      const at::Tensor here = zeroed.narrow(0, block, x.size(0)).unsqueeze(-1);
      block += x.size(0);
      const at::Tensor y = PlainMlp(model_, layer, x);
      return at::where(here, at::zeros({}, y.options()), y);
    };
    GH_RETURN_IF_ERROR(split_.ForLastWith(write, work, [&](int64_t first, const at::Tensor& last) {
      const Damage part = DamageOf(first, last);
      damage.cross_entropy.narrow(0, first, last.size(0)).copy_(part.cross_entropy);
      damage.kl.narrow(0, first, last.size(0)).copy_(part.kl);
    }));
    return damage;
  }

 private:
  // Of the blocks from `first` on, with this leaving the last layer: [count, window, d_model]
  // float32.
  Damage DamageOf(int64_t first, const at::Tensor& last) const {
    const int64_t count = last.size(0), predicted = last.size(1) - 1;
    const auto rows_of = [&](const at::Tensor& residual) {
      return residual.narrow(1, 0, predicted).reshape({count * predicted, residual.size(2)});
    };
    const at::Tensor full = rows_of(last_.narrow(0, first, count)), changed = rows_of(last);
    const at::Tensor targets = split_.ids().narrow(0, first, count).narrow(1, 1, predicted).reshape({-1, 1});
    Damage damage{at::empty({count * predicted}, last.options().dtype(at::kDouble)), {}};
    damage.kl = at::empty_like(damage.cross_entropy);
    for (int64_t row = 0; row < full.size(0); row += kPlainLogitRows) {
      const int64_t n = std::min(kPlainLogitRows, full.size(0) - row);
      const at::Tensor log_p = PlainLogits(model_, full.narrow(0, row, n)).log_softmax(-1);
      const at::Tensor log_q = PlainLogits(model_, changed.narrow(0, row, n)).log_softmax(-1);
      damage.cross_entropy.narrow(0, row, n).copy_(-log_q.gather(-1, targets.narrow(0, row, n)).squeeze(-1));
      damage.kl.narrow(0, row, n).copy_((log_p.exp() * (log_p - log_q)).sum(-1, /*keepdim=*/false, at::kDouble));
    }
    return {damage.cross_entropy.view({count, predicted}), damage.kl.view({count, predicted})};
  }

  const ModelWeights& model_;
  const SplitStream& split_;
  at::Tensor last_;  // [blocks, window, d_model] float32
  at::Tensor cross_entropy_;
};

class AblationStudy {
 public:
  AblationStudy(const ExperimentContext& context, const AblationMethod& method, std::span<const CorpusPlan> plans)
      : context_(context), method_(method), plans_(plans), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const auto tokens = [&](const std::vector<int64_t>& blocks) {
      return static_cast<double>(blocks.size()) * plan.splits.window;
    };
    const double fit = tokens(plan.splits.fit), gate = tokens(plan.splits.gate), report = tokens(plan.splits.report);
    const int layers = context_.model.config.layers;
    double work = report * (layers + 1) + (fit + gate + report) * PassingWork(layers_);
    for (const int layer : layers_) {
      work += 2 * fit + gate + report + (2 + LevelPasses(layer)) * report * (layers - layer);
    }
    return work;
  }

  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish() &&;

 private:
  struct Splits {
    SplitStream fit, gate, report;
  };
  // One layer of one corpus.
  struct Layer {
    const CorpusPlan& plan;
    int layer;
    const ConsensusTrace& trace;  // of the report split
    const FullModel& full;
  };

  // At most; the last layer needs none.
  int LevelPasses(int layer) const { return layer + 1 < context_.model.config.layers ? method_.max_consensus + 1 : 0; }

  absl::Status Study(const CorpusPlan& plan, int layer, const Splits& splits, const FullModel& full, Work& work);
  absl::Status ZeroEachLevel(const Layer& of, const Damage& no_sinks, const SplitStream& report, Work& work);
  AblationLevelRow LevelRow(const Layer& of, ZeroedTokens zeroed, int64_t level, const Damage& damage) const;
  void Contrast(const Layer& of, const at::Tensor& delta, AblationLayerRow& row) const;

  Interval MeanOf(const at::Tensor& values, const at::Tensor& mask) const {
    return BootstrapMean(values, mask, context_.options.bootstrap_resamples, context_.options.seed);
  }
  Interval ChangeOf(const FullModel& full, const Damage& damage) const {
    return BootstrapPerplexityChange(full.cross_entropy(), damage.cross_entropy, context_.options.bootstrap_resamples,
                                     context_.options.seed);
  }

  const ExperimentContext& context_;
  const AblationMethod& method_;
  const std::span<const CorpusPlan> plans_;
  const std::vector<int> layers_;
  AblationFigures figures_;
  size_t corpora_ = 0;
  std::vector<at::Tensor> levels_, deltas_, kls_;  // of one corpus, one a layer
  std::vector<ReportArray> arrays_;
};

// Tokens of a level, without sinks, that predict one: [blocks, window − 1] bool.
at::Tensor Predicting(const at::Tensor& tokens) { return tokens.narrow(1, 0, tokens.size(1) - 1); }

AblationLevelRow AblationStudy::LevelRow(const Layer& of, ZeroedTokens zeroed, int64_t level,
                                         const Damage& damage) const {
  const at::Tensor kept = Predicting(of.trace.kept), here = kept & (Predicting(of.trace.level) == level);
  AblationLevelRow row{.corpus = of.plan.name,
                       .series = SeriesName(plans_, of.plan, StrCat("layer ", of.layer)),
                       .layer = of.layer,
                       .zeroed = zeroed,
                       .level = level,
                       .most = of.trace.most(),
                       .tokens = here.sum().item<int64_t>(),
                       .delta_ce = MeanOf(damage.cross_entropy - of.full.cross_entropy(), here),
                       .kl = MeanOf(damage.kl, here),
                       .whole_change = ChangeOf(of.full, damage)};
  row.share = static_cast<double>(row.tokens) / static_cast<double>(std::max<int64_t>(1, kept.sum().item<int64_t>()));
  return row;
}

void AblationStudy::Contrast(const Layer& of, const at::Tensor& delta, AblationLayerRow& row) const {
  const at::Tensor kept = Predicting(of.trace.kept);
  const at::Tensor minority = kept & (Predicting(of.trace.level) * 2 < of.trace.most()), majority = kept & ~minority;
  row.minority = MeanOf(delta, minority);
  row.majority = MeanOf(delta, majority);
  const auto sum = [&](const at::Tensor& values, const at::Tensor& mask) { return (values * mask).sum(1); };
  const at::Tensor ones = at::ones_like(delta);
  const at::Tensor sums =
      at::stack({sum(delta, minority), sum(ones, minority), sum(delta, majority), sum(ones, majority)}, 1);
  row.contrast =
      BlockBootstrap(sums, context_.options.bootstrap_resamples, context_.options.seed, [](const at::Tensor& totals) {
        return totals.select(1, 0) / totals.select(1, 1) - totals.select(1, 2) / totals.select(1, 3);
      });
}

absl::Status AblationStudy::ZeroEachLevel(const Layer& of, const Damage& no_sinks, const SplitStream& report,
                                          Work& work) {
  const ConsensusTrace& trace = of.trace;
  const int64_t levels = trace.most() == 0 ? 0 : trace.most() + 1;
  for (int64_t level = 0; level < levels; ++level) {
    const at::Tensor here = trace.kept & (trace.level == level);
    if (LevelPasses(of.layer) == 0) {
      const at::Tensor predicting = Predicting(here);
      const Damage alone{at::where(predicting, no_sinks.cross_entropy, of.full.cross_entropy()),
                         at::where(predicting, no_sinks.kl, at::zeros({}, no_sinks.kl.options()))};
      figures_.levels.push_back(LevelRow(of, ZeroedTokens::kLevel, level, alone));
      continue;
    }
    GH_ASSIGN_OR_RETURN(const Damage alone, of.full.Without(of.layer, here, work));
    figures_.levels.push_back(LevelRow(of, ZeroedTokens::kLevel, level, alone));
  }
  // What was planned for levels that there are not.
  const auto left = static_cast<double>(LevelPasses(of.layer) - levels);
  if (left <= 0) return absl::OkStatus();
  return work.Step(left * static_cast<double>(report.tokens()) * (context_.model.config.layers - of.layer));
}

absl::Status AblationStudy::Study(const CorpusPlan& plan, int layer, const Splits& splits, const FullModel& full,
                                  Work& work) {
  const ModelWeights& model = context_.model;
  const ExperimentOptions& options = context_.options;
  GH_ASSIGN_OR_RETURN(
      const FoundConsensus found,
      FindLayerConsensus(
          model, layer, splits.fit, splits.gate,
          {.sinks = options.sink_positions, .ridge = options.ridge, .max_consensus = method_.max_consensus}, work));
  GH_ASSIGN_OR_RETURN(const ConsensusTrace trace,
                      TraceConsensus(model, layer, found, splits.report, options.sink_positions, work));
  const Layer of{plan, layer, trace, full};
  const at::Tensor everywhere = at::ones_like(trace.kept);
  at::Tensor no_sinks = everywhere.clone();
  no_sinks.narrow(1, 0, options.sink_positions).fill_(false);
  GH_ASSIGN_OR_RETURN(const Damage all, full.Without(layer, everywhere, work));
  GH_ASSIGN_OR_RETURN(const Damage but_sinks, full.Without(layer, no_sinks, work));

  const at::Tensor any = at::ones_like(full.cross_entropy(), at::kBool);
  const at::Tensor delta = all.cross_entropy - full.cross_entropy();
  AblationLayerRow row{.corpus = plan.name,
                       .series = SeriesName(plans_, plan, "zeroed"),
                       .layer = layer,
                       .consensus = trace.most(),
                       .exception = trace.exception.size(2),
                       .change = ChangeOf(full, all),
                       .kl = MeanOf(all.kl, any),
                       .change_no_sinks = ChangeOf(full, but_sinks),
                       .kl_no_sinks = MeanOf(but_sinks.kl, any),
                       .minority = kNoInterval,
                       .majority = kNoInterval,
                       .contrast = kNoInterval};
  if (row.consensus > 0) Contrast(of, delta, row);
  figures_.layers.push_back(std::move(row));
  for (int64_t level = 0; trace.most() > 0 && level <= trace.most(); ++level) {
    figures_.levels.push_back(LevelRow(of, ZeroedTokens::kAll, level, all));
    figures_.levels.push_back(LevelRow(of, ZeroedTokens::kNoSinks, level, but_sinks));
  }
  levels_.push_back(at::where(trace.kept, trace.level, at::full_like(trace.level, -1)));
  deltas_.push_back(delta);
  kls_.push_back(all.kl);
  return ZeroEachLevel(of, but_sinks, splits.report, work);
}

absl::Status AblationStudy::Run(const CorpusPlan& plan, Work& work) {
  const ModelWeights& model = context_.model;
  Splits splits{plan.Stream(model, plan.splits.fit), plan.Stream(model, plan.splits.gate),
                plan.Stream(model, plan.splits.report)};
  FullModel full(model, splits.report);
  work.SetStage("predictions of the full model");
  GH_RETURN_IF_ERROR(full.Measure(work));
  SplitStream* const streams[] = {&splits.fit, &splits.gate, &splits.report};
  GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("ablation on ", plan.name), work,
                               [&](int layer) { return Study(plan, layer, splits, full, work); }));
  const size_t number = ++corpora_;
  arrays_.push_back(ArrayOf(StrCat("level.", number), at::stack(levels_)));
  arrays_.push_back(ArrayOf(StrCat("delta_ce.", number), at::stack(deltas_)));
  arrays_.push_back(ArrayOf(StrCat("kl.", number), at::stack(kls_)));
  for (auto* tensors : {&levels_, &deltas_, &kls_}) tensors->clear();
  return absl::OkStatus();
}

ExperimentResult AblationStudy::Finish() && {
  ExperimentResult result;
  DescribeProtocol(context_, plans_, result.report);
  result.report.settings.emplace_back("max_consensus", StrCat(method_.max_consensus));
  DescribeAblation(figures_, context_.model.config.gated_mlp, result.report);
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> AblateByConsensus(const ExperimentContext& context, const AblationMethod& method) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  AblationStudy study(context, method, plans);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, study));
  return std::move(study).Finish();
}

}  // namespace gatehouse
