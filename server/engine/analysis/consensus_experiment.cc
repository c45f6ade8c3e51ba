#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/consensus_levels.h"
#include "server/engine/analysis/consensus_prediction.h"
#include "server/engine/analysis/consensus_report.h"
#include "server/engine/analysis/consensus_trace.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/gating/firing.h"

namespace gatehouse {
namespace {

// The consensus architecture ("The Discrete Charm of the MLP", methods B.4-B.6, B.8 and B.10):
// which neurons fire by default and fall silent where a layer is most nonlinear, what their
// level goes with on other tokens, and whether random weights look any different.

FindingCounts CountsOf(const NeuronFindings& findings) {
  const auto size = [](const std::vector<NeuronFinding>& found) { return static_cast<double>(found.size()); };
  return {size(findings.consensus), size(findings.exception), size(findings.gateway)};
}

// `values` where a token is no sink, −1 elsewhere.
at::Tensor OrNone(const at::Tensor& values, const at::Tensor& kept) {
  const at::Tensor integers = values.to(at::kLong);
  return at::where(kept, integers, at::full_like(integers, -1));
}

class ConsensusStudy {
 public:
  ConsensusStudy(const ExperimentContext& context, const ConsensusMethod& method)
      : context_(context), method_(method), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const auto tokens = [&](const std::vector<int64_t>& blocks) {
      return static_cast<double>(blocks.size()) * plan.splits.window;
    };
    const double fit = tokens(plan.splits.fit), gate = tokens(plan.splits.gate), report = tokens(plan.splits.report);
    const double study = 2 * (2 * fit + gate + report) + gate;
    return (fit + gate + report) * PassingWork(layers_) + study * static_cast<double>(layers_.size());
  }

  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish(std::span<const CorpusPlan> plans) &&;

 private:
  struct Splits {
    SplitStream fit, gate, report;
  };

  absl::Status Study(const CorpusPlan& plan, int layer, const Splits& splits, Work& work);
  // Rows of a trace of the report split; `weights` says whose neurons these are.
  void AddLevels(const CorpusPlan& plan, int layer, const char* weights, const ConsensusTrace& trace);
  void AddNeurons(const CorpusPlan& plan, int layer, const NeuronFindings& found, const ConsensusTrace& trace);
  void AddArrays(const ConsensusTrace& trace);
  Interval GradientOf(const ConsensusTrace& trace) const {
    return ConsensusGradient(trace, context_.options.bootstrap_resamples, context_.options.seed);
  }

  const ExperimentContext& context_;
  const ConsensusMethod& method_;
  const std::vector<int> layers_;
  ConsensusFigures figures_;
  size_t corpora_ = 0;
  std::vector<at::Tensor> levels_, exceptions_, norms_, residuals_;  // of one corpus, one a layer
  std::vector<ReportArray> arrays_;
};

void ConsensusStudy::AddLevels(const CorpusPlan& plan, int layer, const char* weights, const ConsensusTrace& trace) {
  if (trace.most() == 0) return;
  int64_t level = 0;
  for (LevelStatistics& statistics :
       StatisticsByLevel(trace, context_.options.bootstrap_resamples, context_.options.seed)) {
    figures_.levels.push_back({plan.name, weights, layer, level++, trace.most(), std::move(statistics)});
  }
}

void ConsensusStudy::AddNeurons(const CorpusPlan& plan, int layer, const NeuronFindings& found,
                                const ConsensusTrace& trace) {
  const ExperimentOptions& options = context_.options;
  const auto add = [&](const char* kind, const std::vector<NeuronFinding>& findings, const at::Tensor& activations) {
    for (size_t i = 0; i < findings.size(); ++i) {
      const at::Tensor of_one = activations.select(2, static_cast<int64_t>(i));
      figures_.neurons.push_back({plan.name, kind, layer, findings[i], RatesOf(findings[i].neuron, of_one, trace)});
    }
  };
  add("consensus", found.consensus, trace.consensus);
  add("exception", found.exception, trace.exception);
  add("gateway", found.gateway, trace.gateway);

  const at::Tensor consensus = trace.consensus > kFiringThreshold, exception = trace.exception > kFiringThreshold;
  const size_t exceptions = std::min(found.exception.size(), static_cast<size_t>(method_.max_consensus));
  for (size_t i = 0; i < exceptions; ++i) {
    for (size_t j = 0; j < found.consensus.size(); ++j) {
      figures_.exclusivity.push_back({plan.name, layer, found.exception[i].neuron, found.consensus[j].neuron,
                                      MeasureExclusivity(exception.select(2, static_cast<int64_t>(i)),
                                                         consensus.select(2, static_cast<int64_t>(j)), trace.kept,
                                                         options.bootstrap_resamples, options.seed)});
    }
  }
}

void ConsensusStudy::AddArrays(const ConsensusTrace& trace) {
  const bool has_exception = trace.exception.size(2) > 0;
  levels_.push_back(OrNone(trace.level, trace.kept));
  exceptions_.push_back(has_exception ? OrNone(trace.leading_exception(), trace.kept) : at::full_like(trace.level, -1));
  norms_.push_back(trace.norm);
  residuals_.push_back(trace.residual);
}

absl::Status ConsensusStudy::Study(const CorpusPlan& plan, int layer, const Splits& splits, Work& work) {
  const ModelWeights& model = context_.model;
  const ExperimentOptions& options = context_.options;
  // Seeds of different layers and of neighbouring experiments differ.
  const uint64_t seed = options.seed * 1'000'003 + static_cast<uint64_t>(layer);
  ConsensusSearch search{.sinks = options.sink_positions,
                         .ridge = options.ridge,
                         .max_consensus = method_.max_consensus,
                         .shuffles = kNullShuffles,
                         .seed = seed};
  GH_ASSIGN_OR_RETURN(const FoundConsensus found,
                      FindLayerConsensus(model, layer, splits.fit, splits.gate, search, work));
  GH_ASSIGN_OR_RETURN(const ConsensusTrace seen,
                      TraceConsensus(model, layer, found, splits.gate, options.sink_positions, work));
  GH_ASSIGN_OR_RETURN(const ConsensusTrace trace,
                      TraceConsensus(model, layer, found, splits.report, options.sink_positions, work));
  // B.10: the same layer on the same inputs, its MLP drawn anew.
  const ModelWeights random_model = WithRandomMlp(model, layer, seed);
  search.shuffles = 0;
  GH_ASSIGN_OR_RETURN(const FoundConsensus random,
                      FindLayerConsensus(random_model, layer, splits.fit, splits.gate, search, work));
  GH_ASSIGN_OR_RETURN(const ConsensusTrace random_trace,
                      TraceConsensus(random_model, layer, random, splits.report, options.sink_positions, work));

  figures_.layers.push_back({plan.name, layer, CountsOf(found.neurons), found.shuffled, CountsOf(random.neurons),
                             GradientOf(trace), GradientOf(random_trace)});
  AddLevels(plan, layer, kTrained, trace);
  AddLevels(plan, layer, kRandomWeights, random_trace);
  AddNeurons(plan, layer, found.neurons, trace);
  AddArrays(trace);
  if (trace.most() == 0) return absl::OkStatus();
  GH_ASSIGN_OR_RETURN(const ConsensusPrediction prediction,
                      PredictFromConsensus(seen, trace, options.ridge, options.bootstrap_resamples, options.seed));
  figures_.predictions.push_back({plan.name, "binary", layer, prediction.base_rate, prediction.binary});
  figures_.predictions.push_back({plan.name, "continuous", layer, prediction.base_rate, prediction.continuous});
  figures_.differences.push_back(
      {plan.name, layer, prediction.accuracy_difference, prediction.auc_difference, prediction.r2_difference});
  return absl::OkStatus();
}

absl::Status ConsensusStudy::Run(const CorpusPlan& plan, Work& work) {
  const ModelWeights& model = context_.model;
  Splits splits{plan.Stream(model, plan.splits.fit), plan.Stream(model, plan.splits.gate),
                plan.Stream(model, plan.splits.report)};
  SplitStream* const streams[] = {&splits.fit, &splits.gate, &splits.report};
  GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("consensus on ", plan.name), work,
                               [&](int layer) { return Study(plan, layer, splits, work); }));
  const size_t number = ++corpora_;
  arrays_.push_back(ArrayOf(StrCat("level.", number), at::stack(levels_)));
  arrays_.push_back(ArrayOf(StrCat("exception.", number), at::stack(exceptions_)));
  arrays_.push_back(ArrayOf(StrCat("output_norm.", number), at::stack(norms_)));
  arrays_.push_back(ArrayOf(StrCat("residual_norm.", number), at::stack(residuals_)));
  for (auto* tensors : {&levels_, &exceptions_, &norms_, &residuals_}) tensors->clear();
  return absl::OkStatus();
}

ExperimentResult ConsensusStudy::Finish(std::span<const CorpusPlan> plans) && {
  ExperimentResult result;
  DescribeProtocol(context_, plans, result.report);
  result.report.settings.emplace_back("max_consensus", StrCat(method_.max_consensus));
  result.report.settings.emplace_back("shuffles", StrCat(kNullShuffles));
  DescribeConsensus(figures_, context_.model.config.gated_mlp, result.report);
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> FindConsensus(const ExperimentContext& context, const ConsensusMethod& method) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  ConsensusStudy study(context, method);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, study));
  return std::move(study).Finish(plans);
}

}  // namespace gatehouse
