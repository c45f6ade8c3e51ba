#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/bottleneck_gate.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/gate_sweep_report.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/logistic_gate.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

// Gates of a layer ("Half the Nonlinearity Is Wasted", methods A.3): p = P(linear is fine), a
// token goes linear iff p > threshold.  Gates are fitted on the gate split, chosen on the
// select split, and swept on the report split, each layer alone.

constexpr const char* kLogistic = "logistic";

struct NamedGate {
  std::string name;
  LogisticGate gate;  // of the control undefined
};

class GateSweep {
 public:
  GateSweep(const ExperimentContext& context, const GateSweepMethod& method, std::span<const CorpusPlan> plans)
      : context_(context),
        plans_(plans),
        layers_(ChosenLayers(context)),
        thresholds_(method.thresholds),
        bottlenecks_(method.bottlenecks) {
    std::sort(thresholds_.begin(), thresholds_.end());
    thresholds_.erase(std::unique(thresholds_.begin(), thresholds_.end()), thresholds_.end());
  }

  double WorkOf(const CorpusPlan& plan) const {
    const auto tokens = [&](const std::vector<int64_t>& blocks) {
      return static_cast<double>(blocks.size()) * plan.splits.window;
    };
    const double fit = tokens(plan.splits.fit), gate = tokens(plan.splits.gate), select = tokens(plan.splits.select);
    const double report = tokens(plan.splits.report);
    const int layers = context_.model.config.layers;
    const auto gates = static_cast<double>(bottlenecks_.size() + 2),
               thresholds = static_cast<double>(thresholds_.size());
    double work = (gate + select + report) * (layers + 1) + (fit + gate + select + report) * PassingWork(layers_);
    for (const int layer : layers_) {
      work += 2 * fit + gate + report +
              (gate + gates * select + (1 + gates * (1 + thresholds)) * report) * (layers - layer);
    }
    return work;
  }

  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish() &&;

 private:
  // The splits of one corpus, and what every layer's study reads.
  struct Splits {
    SplitStream fit, gate, select, report;
  };

  absl::Status Study(const CorpusPlan& plan, int layer, const Splits& splits, Work& work);
  absl::StatusOr<std::vector<NamedGate>> FitGates(int layer, const FittedMlp& fitted, const SplitStream& gate,
                                                  Work& work, double& limit) const;
  // p of every token, [blocks, window]; −1 at sinks, which no threshold lets go linear.
  at::Tensor Probability(const NamedGate& gate, int layer, const SplitStream& split) const;

  const ExperimentContext& context_;
  const std::span<const CorpusPlan> plans_;
  const std::vector<int> layers_;
  std::vector<double> thresholds_;
  const std::vector<int> bottlenecks_;
  size_t corpora_ = 0;
  std::vector<SweepRow> sweep_;
  std::vector<HalfRow> halves_;
  std::map<std::string, std::vector<at::Tensor>> probabilities_;  // by gate, one a layer
  std::vector<at::Tensor> deltas_;
  std::vector<ReportArray> arrays_;
};

absl::StatusOr<std::vector<NamedGate>> GateSweep::FitGates(int layer, const FittedMlp& fitted, const SplitStream& gate,
                                                           Work& work, double& limit) const {
  const ModelWeights& model = context_.model;
  const int sinks = context_.options.sink_positions;
  GH_ASSIGN_OR_RETURN(const at::Tensor kept, KeptTokens(model, layer, fitted, gate, sinks, work));
  GH_ASSIGN_OR_RETURN(const at::Tensor linear, LinearCrossEntropy(model, layer, gate, fitted.surrogate, sinks, work));
  const int64_t predicted = gate.window() - 1;  // a block's last token predicts nothing
  const at::Tensor used = kept.narrow(1, 0, predicted);
  const at::Tensor delta = (linear - gate.full_cross_entropy()).index({used}).cpu();
  if (delta.numel() == 0) return absl::FailedPreconditionError("every token of the gate split is a sink");
  const std::span values(delta.const_data_ptr<double>(), static_cast<size_t>(delta.numel()));
  limit = GateLabelLimit(values);
  const std::vector<uint8_t> labels = GateLabels(values);
  const at::Tensor x = gate.x().narrow(1, 0, predicted).index({used});

  std::vector<NamedGate> gates(1, NamedGate{kLogistic, {}});
  GH_ASSIGN_OR_RETURN(gates[0].gate, FitLogisticGate(x, labels));
  GH_ASSIGN_OR_RETURN(std::vector<LogisticGate> narrow, FitBottleneckGates(x, labels, bottlenecks_));
  for (size_t i = 0; i < narrow.size(); ++i) {
    gates.push_back({StrCat("pca_", 2 * bottlenecks_[i]), std::move(narrow[i])});
  }
  gates.push_back({kRandomGate, {}});
  return gates;
}

at::Tensor GateSweep::Probability(const NamedGate& gate, int layer, const SplitStream& split) const {
  at::Tensor p;
  if (gate.name == kRandomGate) {
    at::Generator random = at::detail::createCPUGenerator(context_.options.seed * 1'000'003 + layer);
    p = at::rand({split.blocks(), split.window()}, random).to(split.x().device());
  } else {
    p = gate.gate.Probability(split.x());
  }
  p.narrow(1, 0, context_.options.sink_positions).fill_(-1);
  return p;
}

// The half of the tokens but the sinks with the largest p, the earlier first among equals.
at::Tensor BestHalf(const at::Tensor& p) {
  const int64_t eligible = (p >= 0).sum().item<int64_t>();
  const at::Tensor order = std::get<1>(p.flatten().sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  at::Tensor linear = at::zeros_like(p, at::kBool).flatten();
  linear.index_fill_(0, order.narrow(0, 0, eligible / 2), true);
  return linear.view_as(p);
}

// AUC of p for "δCE is at most `limit`" over the tokens that may go linear and predict.
Interval AucOf(const at::Tensor& p, const at::Tensor& delta, double limit, const ExperimentOptions& options,
               double& base_rate) {
  const int64_t blocks = delta.size(0), predicted = delta.size(1);
  const at::Tensor scores = p.narrow(1, 0, predicted).to(at::kDouble).cpu().contiguous();
  const at::Tensor changes = delta.cpu().contiguous();
  std::vector<double> kept_scores;
  std::vector<uint8_t> labels;
  std::vector<int64_t> block_of;
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = options.sink_positions; i < predicted; ++i) {
      kept_scores.push_back(scores.const_data_ptr<double>()[block * predicted + i]);
      labels.push_back(changes.const_data_ptr<double>()[block * predicted + i] <= limit);
      block_of.push_back(block);
    }
  }
  base_rate = static_cast<double>(std::count(labels.begin(), labels.end(), uint8_t{1})) /
              static_cast<double>(std::max<size_t>(1, labels.size()));
  return BootstrapAuc(kept_scores, labels, block_of, blocks, options.bootstrap_resamples, options.seed);
}

absl::Status GateSweep::Study(const CorpusPlan& plan, int layer, const Splits& splits, Work& work) {
  const ModelWeights& model = context_.model;
  const ExperimentOptions& options = context_.options;
  const auto cost_of = [&](const SplitStream& split, const at::Tensor& ce) {
    return BootstrapPerplexityChange(split.full_cross_entropy(), ce, options.bootstrap_resamples, options.seed);
  };
  GH_ASSIGN_OR_RETURN(const FittedMlp fitted,
                      FitMlp(model, layer, splits.fit, options.sink_positions, options.ridge, work));
  const Surrogate& surrogate = fitted.surrogate;
  double limit = 0;
  GH_ASSIGN_OR_RETURN(const std::vector<NamedGate> gates, FitGates(layer, fitted, splits.gate, work, limit));
  GH_ASSIGN_OR_RETURN(const at::Tensor linear,
                      LinearCrossEntropy(model, layer, splits.report, surrogate, options.sink_positions, work));
  const Interval linear_cost = cost_of(splits.report, linear);
  const double full_perplexity = std::exp(splits.report.full_cross_entropy().mean().item<double>());
  deltas_.push_back(linear - splits.report.full_cross_entropy());

  const size_t first_half = halves_.size(), first_sweep = sweep_.size();
  std::vector<at::Tensor> half_ces;  // one a gate
  for (const NamedGate& gate : gates) {
    HalfRow half{.corpus = plan.name,
                 .layer = layer,
                 .gate = gate.name,
                 .series = SeriesName(plans_, plan, gate.name),
                 .linear_cost = linear_cost};
    GH_ASSIGN_OR_RETURN(const at::Tensor selected,
                        RoutedCrossEntropy(model, layer, splits.select, surrogate,
                                           BestHalf(Probability(gate, layer, splits.select)), work));
    half.select_cost = PerplexityChange(splits.select.full_cross_entropy(), selected);
    const at::Tensor p = Probability(gate, layer, splits.report);
    probabilities_[gate.name].push_back(p);
    half.auc = AucOf(p, deltas_.back(), limit, options, half.base_rate);
    const at::Tensor best = BestHalf(p);
    GH_ASSIGN_OR_RETURN(const at::Tensor reported,
                        RoutedCrossEntropy(model, layer, splits.report, surrogate, best, work));
    half.cost = cost_of(splits.report, reported);
    half_ces.push_back(reported);
    half.linear_fraction = best.to(at::kDouble).mean().item<double>();
    halves_.push_back(std::move(half));

    at::Tensor route;  // of the threshold before
    for (const double threshold : thresholds_) {
      SweepRow row{.corpus = plan.name,
                   .layer = layer,
                   .gate = gate.name,
                   .threshold = threshold,
                   .full_perplexity = full_perplexity};
      row.series = SeriesName(plans_, plan, StrCat("layer ", layer));
      const at::Tensor next = p > threshold;
      if (route.defined() && route.equal(next)) {
        row.cost = sweep_.back().cost;
        GH_RETURN_IF_ERROR(work.Step(static_cast<double>(splits.report.tokens()) * (model.config.layers - layer)));
      } else {
        GH_ASSIGN_OR_RETURN(const at::Tensor ce,
                            RoutedCrossEntropy(model, layer, splits.report, surrogate, next, work));
        row.cost = cost_of(splits.report, ce);
      }
      route = next;
      row.linear_fraction = route.to(at::kDouble).mean().item<double>();
      sweep_.push_back(std::move(row));
    }
  }

  for (size_t i = 0; i < half_ces.size(); ++i) {  // the control is last
    halves_[first_half + i].against_random =
        BootstrapPerplexityChange(half_ces.back(), half_ces[i], options.bootstrap_resamples, options.seed);
  }

  // The choice, on tokens that neither fitted a gate nor are reported on.
  const auto best = std::min_element(halves_.begin() + first_half, halves_.end() - 1,
                                     [](const HalfRow& a, const HalfRow& b) { return a.select_cost < b.select_cost; });
  best->chosen = true;
  for (size_t i = first_sweep; i < sweep_.size(); ++i) sweep_[i].chosen = sweep_[i].gate == best->gate;
  return absl::OkStatus();
}

absl::Status GateSweep::Run(const CorpusPlan& plan, Work& work) {
  const ModelWeights& model = context_.model;
  Splits splits{plan.Stream(model, plan.splits.fit), plan.Stream(model, plan.splits.gate),
                plan.Stream(model, plan.splits.select), plan.Stream(model, plan.splits.report)};
  work.SetStage("perplexity of the full model");
  for (SplitStream* split : {&splits.gate, &splits.select, &splits.report}) {
    GH_RETURN_IF_ERROR(MeasureFullModel(*split, work));
  }
  SplitStream* const streams[] = {&splits.fit, &splits.gate, &splits.select, &splits.report};
  GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("gates on ", plan.name), work,
                               [&](int layer) { return Study(plan, layer, splits, work); }));
  const size_t number = ++corpora_;
  for (const auto& [gate, tensors] : probabilities_) {
    if (gate != kRandomGate) arrays_.push_back(ArrayOf(StrCat("p_", gate, ".", number), at::stack(tensors)));
  }
  arrays_.push_back(ArrayOf(StrCat("delta_ce.", number), at::stack(deltas_)));
  probabilities_.clear();
  deltas_.clear();
  return absl::OkStatus();
}

ExperimentResult GateSweep::Finish() && {
  ExperimentResult result;
  Report& report = result.report;
  DescribeProtocol(context_, plans_, report);
  report.settings.emplace_back("thresholds", absl::StrJoin(thresholds_, ", "));
  report.settings.emplace_back("bottlenecks", absl::StrJoin(bottlenecks_, ", "));
  report.settings.emplace_back("gate_regression", "logistic, L2 with C = 1 on standardised inputs");
  DescribeGateSweep(sweep_, halves_, report);
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> SweepGates(const ExperimentContext& context, const GateSweepMethod& method) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  GateSweep sweep(context, method, plans);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, sweep));
  return std::move(sweep).Finish();
}

}  // namespace gatehouse
