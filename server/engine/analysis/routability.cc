#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/routability_gates.h"
#include "server/engine/analysis/shuffle.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

// Routability of each layer ("Half the Nonlinearity Is Wasted", methods A.4); the gates and
// their controls are in routability_gates.h.  Tokens are those of the gate, select and report
// splits, which no surrogate was fitted on: 70 % of their blocks train, 30 % test.

constexpr double kTrainShare = 0.7;
constexpr double kGateWork = 2;  // of training one gate, in evaluations of a layer for each token

struct GateRow {
  std::string corpus;
  int layer = 0;
  GateFinding gate;
  std::string series;
};

struct DifferenceRow {
  std::string corpus;
  int layer = 0;
  GateDifference gates;
  std::string series;
};

class Routability {
 public:
  Routability(const ExperimentContext& context, std::span<const CorpusPlan> plans)
      : context_(context), plans_(plans), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const double fit = static_cast<double>(plan.splits.fit.size()) * plan.splits.window;
    const double held = static_cast<double>(plan.HeldOut().size()) * plan.splits.window;
    const int layers = context_.model.config.layers;
    double work = held * (layers + 1) + (fit + held) * PassingWork(layers_);
    for (const int layer : layers_) {
      work += 2 * fit + held + held * (layers - layer) + kRoutabilityGates * kGateWork * held;
    }
    return work;
  }

  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish() &&;

 private:
  absl::Status Study(const CorpusPlan& plan, int layer, const SplitStream& fit, const SplitStream& held,
                     const at::Tensor& residual, Work& work);

  const ExperimentContext& context_;
  const std::span<const CorpusPlan> plans_;
  const std::vector<int> layers_;
  size_t corpora_ = 0;
  std::vector<int64_t> tests_;      // of the corpus in hand, see RoutabilityTokens
  std::vector<at::Tensor> deltas_;  // one a layer
  std::vector<GateRow> gates_;
  std::vector<DifferenceRow> differences_;
  std::vector<ReportArray> arrays_;
};

// residual: what the layer's MLP norm reads, [blocks, window, d_model].
absl::Status Routability::Study(const CorpusPlan& plan, int layer, const SplitStream& fit, const SplitStream& held,
                                const at::Tensor& residual, Work& work) {
  const ModelWeights& model = context_.model;
  const ExperimentOptions& options = context_.options;
  const int sinks = options.sink_positions;
  GH_ASSIGN_OR_RETURN(const FittedMlp fitted, FitMlp(model, layer, fit, sinks, options.ridge, work));
  RoutabilityTokens tokens;
  tokens.ids = held.ids();
  GH_ASSIGN_OR_RETURN(tokens.kept, KeptTokens(model, layer, fitted, held, sinks, work));
  GH_ASSIGN_OR_RETURN(const at::Tensor linear, LinearCrossEntropy(model, layer, held, fitted.surrogate, sinks, work));
  tokens.delta = linear - held.full_cross_entropy();
  deltas_.push_back(tokens.delta);

  tokens.full = held.x().flatten(0, 1);
  tokens.split = SplitNorm(model.config, model.layers[layer].mlp_norm, residual.flatten(0, 1),
                           PlainEmbed(model, held.ids()).flatten(0, 1));
  const at::Tensor ids = held.ids().flatten();
  tokens.token = at::embedding(model.token_embedding, ids).to(at::kFloat);
  tokens.target = at::embedding(model.token_embedding, ids.roll(-1)).to(at::kFloat);  // a block's last is in no part
  tokens.tests = tests_;
  GH_ASSIGN_OR_RETURN(RoutabilityFindings findings,
                      JudgeRoutability(tokens, options.bootstrap_resamples, options.seed,
                                       [&] { return work.Step(kGateWork * static_cast<double>(held.tokens())); }));
  for (GateFinding& gate : findings.gates) {
    std::string series = SeriesName(plans_, plan, gate.name);
    gates_.push_back({plan.name, layer, std::move(gate), std::move(series)});
  }
  for (GateDifference& gates : findings.differences) {
    std::string series = SeriesName(plans_, plan, gates.name);
    differences_.push_back({plan.name, layer, std::move(gates), std::move(series)});
  }
  return absl::OkStatus();
}

absl::Status Routability::Run(const CorpusPlan& plan, Work& work) {
  const ModelWeights& model = context_.model;
  SplitStream fit = plan.Stream(model, plan.splits.fit), held = plan.Stream(model, plan.HeldOut());
  work.SetStage("perplexity of the full model");
  GH_RETURN_IF_ERROR(MeasureFullModel(held, work));

  std::vector<int64_t> order(held.blocks());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::mt19937_64 random(context_.options.seed);
  Shuffle(order, random);
  const int64_t training =
      std::clamp<int64_t>(std::llround(kTrainShare * static_cast<double>(order.size())), 1, held.blocks() - 1);
  tests_.assign(order.size(), -1);
  for (int64_t i = training; i < held.blocks(); ++i) tests_[order[i]] = i - training;

  // An MLP beside its attention reads what the layer reads.
  at::Tensor read;
  const bool parallel = model.config.parallel_residual;
  SplitStream* const streams[] = {&fit, &held};
  GH_RETURN_IF_ERROR(ForLayers(
      layers_, streams, StrCat("routability on ", plan.name), work,
      [&](int layer) { return Study(plan, layer, fit, held, parallel ? read : held.residual(), work); },
      [&](int) {
        if (parallel) read = held.residual().clone();
        return absl::OkStatus();
      }));
  const size_t number = ++corpora_;
  arrays_.push_back(ArrayOf(StrCat("delta_ce.", number), at::stack(deltas_)));
  arrays_.push_back({StrCat("test_block.", number), {held.blocks()}, tests_});
  deltas_.clear();
  return absl::OkStatus();
}

// What was found on one corpus.
std::string Summarize(const std::string& corpus, const std::vector<GateRow>& gates,
                      const std::vector<DifferenceRow>& differences) {
  const auto range = [&](const char* gate) {
    double low = 1, high = 0;
    for (const GateRow& row : gates) {
      if (row.corpus != corpus || row.gate.name != gate || std::isnan(row.gate.auc.estimate)) continue;
      low = std::min(low, row.gate.auc.estimate);
      high = std::max(high, row.gate.auc.estimate);
    }
    return low > high ? std::string("none") : absl::StrFormat("%.3f-%.3f", low, high);
  };
  const auto above_zero = [&](const char* difference) {
    int layers = 0, above = 0;
    for (const DifferenceRow& row : differences) {
      if (row.corpus != corpus || row.gates.name != difference) continue;
      ++layers;
      above += row.gates.auc.low > 0;
    }
    return StrCat(above, " of ", layers);
  };
  return StrCat("On ", corpus, ", AUC over the layers is ", range("identity"), " for identity, ", range("context"),
                " for context and ", range("full"), " for both (0.5 is chance). Both tell more than identity alone in ",
                above_zero("full - identity"), " layers; context tells more than another context of the same token in ",
                above_zero("context - shuffled"), ". The target token, which no gate can know, gives ", range("target"),
                "; the processed token alone ", range("token"), ".");
}

ReportTable GateTable(const std::vector<GateRow>& rows) {
  using Row = GateRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      "gates",
      "What gates can tell",
      "AUC on the test blocks of a logistic gate that reads: identity e′, context c′, or full (both, what the MLP "
      "reads); token and target: the embedding of the processed and of the next token, no scale in it; the context "
      "of tokens whose identity comes again, and the same shuffled among tokens of equal identity.",
      {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("gate", "what the gate reads", [](const Row& row) { return row.gate.name; }),
       column("auc", "area under the ROC curve; 0.5 is chance, no number where a class is empty",
              [](const Row& row) { return row.gate.auc.estimate; }),
       column("auc_low", "lower end of its 95 % interval", [](const Row& row) { return row.gate.auc.low; }),
       column("auc_high", "upper end of its 95 % interval", [](const Row& row) { return row.gate.auc.high; }),
       column("series", "the gate, for plots", [](const Row& row) { return row.series; }),
       column("base_rate", "share of test tokens with label 1", [](const Row& row) { return row.gate.base_rate; }),
       column("train_tokens", "tokens the gate is trained on", [](const Row& row) { return row.gate.train_tokens; }),
       column("test_tokens", "tokens the AUC is over", [](const Row& row) { return row.gate.test_tokens; })}};
}

ReportTable DifferenceTable(const std::vector<DifferenceRow>& rows) {
  using Row = DifferenceRow;
  const auto column = [&](const char* name, const char* description, auto cell) {
    return ColumnOf(rows, name, description, cell);
  };
  return {
      "differences",
      "Differences between gates",
      "AUC of one gate less that of another over the same test tokens, paired.",
      {column("corpus", "the text", [](const Row& row) { return row.corpus; }),
       column("layer", "index of the layer", [](const Row& row) { return row.layer; }),
       column("gates", "which gate less which", [](const Row& row) { return row.gates.name; }),
       column("series", "the gates, for plots", [](const Row& row) { return row.series; }),
       column("difference", "of AUC; 0 is none", [](const Row& row) { return row.gates.auc.estimate; }),
       column("difference_low", "lower end of its 95 % interval", [](const Row& row) { return row.gates.auc.low; }),
       column("difference_high", "upper end of its 95 % interval", [](const Row& row) { return row.gates.auc.high; })}};
}

ExperimentResult Routability::Finish() && {
  ExperimentResult result;
  Report& report = result.report;
  report.title = "What decides whether a token may go linear";
  for (const CorpusPlan& plan : plans_) {
    report.summary += StrCat(report.summary.empty() ? "" : " ", Summarize(plan.name, gates_, differences_));
  }
  DescribeProtocol(context_, plans_, report);
  report.settings.emplace_back("train_share", StrCat(kTrainShare, " of the blocks that are not in the fit split"));
  report.notes.push_back(
      "What the MLP reads splits exactly into e′ + c′ + β with each token's own scale frozen. That scale is of the "
      "whole residual stream, so it carries some context into e′; 'identity - token' shows how much that tells, with "
      "the position where the model has position embeddings.");
  report.notes.push_back(
      "Attention also writes what follows from a token's own identity, so c′ knows some of it. The control gives each "
      "token the c′ of another of the same identity: what is left of the AUC is identity, the rest is context proper.");
  report.notes.push_back("Labels: δCE at or below the median of the training tokens, so about half of any text is 1.");
  report.tables = {GateTable(gates_), DifferenceTable(differences_)};
  const auto plot = [](const char* title, const char* caption, const char* table, const std::string& y) {
    return ReportPlot{.kind = ReportPlot::Kind::kBar,
                      .title = title,
                      .caption = caption,
                      .table = table,
                      .x = "layer",
                      .y = y,
                      .low = y + "_low",
                      .high = y + "_high",
                      .series = "series",
                      .label = ""};
  };
  report.plots = {
      plot("What gates can tell", "AUC on the test blocks; 0.5 is chance.", "gates", "auc"),
      plot("Differences between gates", "Paired, over the same test tokens; an interval over 0 is no difference.",
           "differences", "difference")};
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> MeasureRoutability(const ExperimentContext& context) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  Routability routability(context, plans);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, routability));
  return std::move(routability).Finish();
}

}  // namespace gatehouse
