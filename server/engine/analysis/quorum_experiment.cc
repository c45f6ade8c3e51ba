#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/item.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/consensus_trace.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/logistic_gate.h"
#include "server/engine/analysis/quorum_report.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/mlp_work.h"
#include "server/engine/training/gated_forward.h"

namespace gatehouse {
namespace {

// Quorum gates ("The Discrete Charm of the MLP", methods B.9): a token runs in full where fewer
// than q of the layer's k consensus neurons fire, else through the surrogate, or past the MLP
// altogether; beside them logistic gates (methods A.3) for the same path at the same work.

enum class Path { kLinear, kSkip };

// Routes of tokens away from the full MLP and what deciding them asked.
struct Traffic {
  const ModelInfo& shape;
  Path path;
  int64_t tokens = 0, eligible = 0;  // eligible: no sinks

  double Saved(int64_t routed, LayerTraffic asked) const {
    asked.full = tokens - routed;
    (path == Path::kLinear ? asked.linear : asked.skip) = routed;
    return MlpWorkSaved(shape, std::span(&asked, 1));
  }
  double SavedByQuorum(int64_t routed, int neurons) const {
    return Saved(routed, {.quorum = eligible, .quorum_neurons = neurons});
  }
  double SavedByGate(int64_t routed) const { return Saved(routed, {.gated = eligible}); }

  // How many tokens a gate must route to save as much, as nearly as it can.
  int64_t RoutedByGateToSave(double saved) const {
    const double none = SavedByGate(0), one = SavedByGate(1) - none;
    if (!(one > 0)) return 0;
    return std::clamp<int64_t>(std::llround((saved - none) / one), 0, eligible);
  }
};

// A rule's choice on the report split.
struct Routed {
  std::string rule;
  at::Tensor route;  // [blocks, window] bool
  double threshold = kNone;
  double work_saved = 0;
};

class QuorumStudy {
 public:
  QuorumStudy(const ExperimentContext& context, const QuorumMethod& method, std::span<const CorpusPlan> plans)
      : context_(context),
        method_(method),
        plans_(plans),
        layers_(ChosenLayers(context)),
        shape_(WorkShape(context.model.config)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const double fit = Tokens(plan, plan.splits.fit), gate = Tokens(plan, plan.splits.gate),
                 select = Tokens(plan, plan.splits.select), report = Tokens(plan, plan.splits.report);
    const int layers = context_.model.config.layers;
    double work = (gate + report) * (layers + 1) + (fit + gate + select + report) * PassingWork(layers_);
    for (const int layer : layers_) {
      work += 2 * fit + gate + select + report + RoutingWork(layer, gate, report, method_.max_consensus);
    }
    return work;
  }

  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish() &&;

 private:
  struct Splits {
    SplitStream fit, gate, select, report;
  };
  // One layer of one corpus.
  struct Layer {
    const CorpusPlan& plan;
    int layer;
    const Splits& splits;
    const FoundConsensus& found;
    const ConsensusTrace &select, &report;
  };

  static double Tokens(const CorpusPlan& plan, const std::vector<int64_t>& blocks) {
    return static_cast<double>(blocks.size()) * plan.splits.window;
  }
  // Of both paths, with k consensus neurons.
  double RoutingWork(int layer, double gate, double report, double k) const {
    return 2 * (gate + 3 * k * report) * (context_.model.config.layers - layer);
  }

  absl::Status Study(const CorpusPlan& plan, int layer, const Splits& splits, Work& work);
  absl::Status StudyPath(const Layer& of, Path path, Work& work);
  absl::StatusOr<LogisticGate> FitGate(const Layer& of, const Surrogate& replacement, Work& work) const;
  // What the gate says of the tokens of two splits: of the eligible ones of `select` [tokens],
  // of all of `report` [blocks, window].
  struct GateProbabilities {
    at::Tensor select, report;
  };
  // How the three rules route at one quorum, the quorum first.
  std::vector<Routed> RoutesAt(const Layer& of, Path path, int64_t quorum, const GateProbabilities& p) const;
  // Without sinks.
  at::Tensor Eligible(const ConsensusTrace& trace) const {
    at::Tensor eligible = at::ones_like(trace.kept);
    eligible.narrow(1, 0, context_.options.sink_positions).fill_(false);
    return eligible;
  }
  Traffic TrafficOf(const at::Tensor& eligible, Path path) const {
    return {shape_, path, eligible.numel(), eligible.sum().item<int64_t>()};
  }

  const ExperimentContext& context_;
  const QuorumMethod& method_;
  const std::span<const CorpusPlan> plans_;
  const std::vector<int> layers_;
  const ModelInfo shape_;
  std::vector<QuorumRow> rows_;
  std::vector<WithoutQuorum> without_;
  size_t corpora_ = 0;
  std::vector<at::Tensor> levels_;  // of one corpus, one a layer
  std::vector<ReportArray> arrays_;
};

// What takes the place of the MLP: the surrogate, or nothing.
Surrogate ReplacementOf(Path path, const Surrogate& surrogate) {
  if (path == Path::kLinear) return surrogate;
  return {at::zeros_like(surrogate.weight), at::zeros_like(surrogate.bias), at::zeros_like(surrogate.output_mean)};
}

// As many of the eligible tokens as `route` has, drawn.
at::Tensor DrawnRoute(const at::Tensor& route, const at::Tensor& eligible, uint64_t seed) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const at::Tensor positions = eligible.flatten().nonzero().squeeze(1);
  const at::Tensor order = at::randperm(positions.numel(), random, at::TensorOptions(at::kLong)).to(positions.device());
  at::Tensor drawn = at::zeros_like(route).flatten();
  drawn.index_fill_(0, positions.index({order.narrow(0, 0, route.sum().item<int64_t>())}), true);
  return drawn.view_as(route);
}

// The threshold that `count` of the values of p exceed, where none are equal.
double ThresholdFor(const at::Tensor& p, int64_t count) {
  if (count == p.numel()) return -1;
  return std::get<0>(p.sort(/*dim=*/0, /*descending=*/true))[count].item<double>();
}

absl::StatusOr<LogisticGate> QuorumStudy::FitGate(const Layer& of, const Surrogate& replacement, Work& work) const {
  const SplitStream& gate = of.splits.gate;
  GH_ASSIGN_OR_RETURN(const at::Tensor replaced, LinearCrossEntropy(context_.model, of.layer, gate, replacement,
                                                                    context_.options.sink_positions, work));
  const int64_t predicted = gate.window() - 1;  // a block's last token predicts nothing
  const at::Tensor used = of.found.kept.narrow(1, 0, predicted);
  const at::Tensor delta = (replaced - gate.full_cross_entropy()).index({used}).cpu();
  if (delta.numel() == 0) return absl::FailedPreconditionError("every token of the gate split is a sink");
  const std::vector<uint8_t> labels = GateLabels({delta.const_data_ptr<double>(), static_cast<size_t>(delta.numel())});
  return FitLogisticGate(gate.x().narrow(1, 0, predicted).index({used}), labels);
}

std::vector<Routed> QuorumStudy::RoutesAt(const Layer& of, Path path, int64_t quorum,
                                          const GateProbabilities& p) const {
  const auto neurons = static_cast<int>(of.report.most());
  const at::Tensor select_eligible = Eligible(of.select), eligible = Eligible(of.report);
  const Traffic select = TrafficOf(select_eligible, path), report = TrafficOf(eligible, path);
  const auto count = [](const at::Tensor& route) { return route.sum().item<int64_t>(); };

  Routed by_quorum{kQuorumRule, (of.report.level >= quorum) & eligible};
  by_quorum.work_saved = report.SavedByQuorum(count(by_quorum.route), neurons);

  const double target = select.SavedByQuorum(count((of.select.level >= quorum) & select_eligible), neurons);
  Routed by_gate{kLogisticRule, {}, ThresholdFor(p.select, select.RoutedByGateToSave(target))};
  by_gate.route = (p.report > by_gate.threshold) & eligible;
  by_gate.work_saved = report.SavedByGate(count(by_gate.route));

  const uint64_t seed = (context_.options.seed * 1'000'003 + static_cast<uint64_t>(of.layer)) * 64 + quorum;
  Routed drawn{kRandomRule, DrawnRoute(by_quorum.route, eligible, seed)};
  drawn.work_saved = report.Saved(count(drawn.route), {});
  return {std::move(by_quorum), std::move(by_gate), std::move(drawn)};
}

absl::Status QuorumStudy::StudyPath(const Layer& of, Path path, Work& work) {
  const ExperimentOptions& options = context_.options;
  const Surrogate replacement = ReplacementOf(path, of.found.fitted.surrogate);
  const std::string path_name = path == Path::kLinear ? "linear" : "skip";
  GH_ASSIGN_OR_RETURN(const LogisticGate gate, FitGate(of, replacement, work));
  const GateProbabilities p{gate.Probability(of.splits.select.x()).index({Eligible(of.select)}),
                            gate.Probability(of.splits.report.x())};
  for (int64_t quorum = 1; quorum <= of.report.most(); ++quorum) {
    at::Tensor quorum_ce;
    for (const Routed& routed : RoutesAt(of, path, quorum, p)) {
      GH_ASSIGN_OR_RETURN(const at::Tensor ce, RoutedCrossEntropy(context_.model, of.layer, of.splits.report,
                                                                  replacement, routed.route, work));
      if (routed.rule == kQuorumRule) quorum_ce = ce;
      const auto change = [&](const at::Tensor& from, const at::Tensor& to) {
        return BootstrapPerplexityChange(from, to, options.bootstrap_resamples, options.seed);
      };
      rows_.push_back(
          {.corpus = of.plan.name,
           .series = SeriesName(plans_, of.plan, StrCat("layer ", of.layer, ", ", path_name, ", ", routed.rule)),
           .layer = of.layer,
           .path = path_name,
           .quorum = quorum,
           .most = of.report.most(),
           .rule = routed.rule,
           .threshold = routed.threshold,
           .routed = routed.route.to(at::kDouble).mean().item<double>(),
           .work_saved = routed.work_saved,
           .cost = change(of.splits.report.full_cross_entropy(), ce),
           .against = change(ce, quorum_ce)});
    }
  }
  return absl::OkStatus();
}

absl::Status QuorumStudy::Study(const CorpusPlan& plan, int layer, const Splits& splits, Work& work) {
  const ModelWeights& model = context_.model;
  const ExperimentOptions& options = context_.options;
  GH_ASSIGN_OR_RETURN(
      const FoundConsensus found,
      FindLayerConsensus(
          model, layer, splits.fit, splits.gate,
          {.sinks = options.sink_positions, .ridge = options.ridge, .max_consensus = method_.max_consensus}, work));
  const auto trace = [&](const SplitStream& split) {
    return TraceConsensus(model, layer, found, split, options.sink_positions, work);
  };
  GH_ASSIGN_OR_RETURN(const ConsensusTrace select, trace(splits.select));
  GH_ASSIGN_OR_RETURN(const ConsensusTrace report, trace(splits.report));
  levels_.push_back(at::where(Eligible(report), report.level, at::full_like(report.level, -1)));
  const auto gate_tokens = static_cast<double>(splits.gate.tokens()),
             report_tokens = static_cast<double>(splits.report.tokens());
  const auto planned = [&](double k) { return RoutingWork(layer, gate_tokens, report_tokens, k); };
  if (report.most() == 0) {
    without_.push_back({plan.name, layer});
    return work.Step(planned(method_.max_consensus));
  }
  const Layer of{plan, layer, splits, found, select, report};
  GH_RETURN_IF_ERROR(StudyPath(of, Path::kLinear, work));
  GH_RETURN_IF_ERROR(StudyPath(of, Path::kSkip, work));
  // What was planned for quorums that there are not.
  return work.Step(planned(method_.max_consensus) - planned(static_cast<double>(report.most())));
}

absl::Status QuorumStudy::Run(const CorpusPlan& plan, Work& work) {
  const ModelWeights& model = context_.model;
  Splits splits{plan.Stream(model, plan.splits.fit), plan.Stream(model, plan.splits.gate),
                plan.Stream(model, plan.splits.select), plan.Stream(model, plan.splits.report)};
  work.SetStage("perplexity of the full model");
  for (SplitStream* split : {&splits.gate, &splits.report}) GH_RETURN_IF_ERROR(MeasureFullModel(*split, work));
  SplitStream* const streams[] = {&splits.fit, &splits.gate, &splits.select, &splits.report};
  GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("quorums on ", plan.name), work,
                               [&](int layer) { return Study(plan, layer, splits, work); }));
  arrays_.push_back(ArrayOf(StrCat("level.", ++corpora_), at::stack(levels_)));
  levels_.clear();
  return absl::OkStatus();
}

ExperimentResult QuorumStudy::Finish() && {
  ExperimentResult result;
  DescribeProtocol(context_, plans_, result.report);
  result.report.settings.emplace_back("max_consensus", StrCat(method_.max_consensus));
  result.report.settings.emplace_back("gate_regression", "logistic, L2 with C = 1 on standardised inputs");
  DescribeQuorum(rows_, without_, context_.model.config.gated_mlp, result.report);
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> CompareQuorumGates(const ExperimentContext& context, const QuorumMethod& method) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  QuorumStudy study(context, method, plans);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, study));
  return std::move(study).Finish();
}

}  // namespace gatehouse
