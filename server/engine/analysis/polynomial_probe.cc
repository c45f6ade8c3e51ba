#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/polynomial_fit.h"
#include "server/engine/analysis/polynomial_report.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/token_words.h"

namespace gatehouse {
namespace {

// The polynomial probe of each layer ("The Discrete Charm of the MLP", methods B.2): of the
// held-out tokens, those whose residual is largest, with and without the tokens that are
// newlines, and how much of their residual a polynomial of x explains.

class ProbeStudy {
 public:
  ProbeStudy(const ExperimentContext& context, const PolynomialProbeMethod& method, std::span<const CorpusPlan> plans)
      : context_(context), method_(method), plans_(plans), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const double fit = static_cast<double>(plan.splits.fit.size()) * plan.splits.window;
    const double held = static_cast<double>(plan.HeldOut().size()) * plan.splits.window;
    const auto layers = static_cast<double>(layers_.size());
    return (fit + held) * PassingWork(layers_) + (2 * fit + held) * layers + layers * FitsOf() * ProbedTokens(plan);
  }

  // InvalidArgument where the corpus has too few tokens for as many components.
  absl::Status CheckTokens(const CorpusPlan& plan) const;
  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish() &&;

 private:
  // Fits of one layer.
  double FitsOf() const { return 2 * (2.0 * static_cast<double>(method_.degrees.size()) + 2); }
  double ProbedTokens(const CorpusPlan& plan) const {
    const auto tokens =
        static_cast<double>(plan.HeldOut().size()) * std::max(0, plan.splits.window - context_.options.sink_positions);
    return method_.high_share * tokens;
  }
  // Which of the held-out tokens are newlines: [tokens] bool.
  at::Tensor Newlines(const CorpusPlan& plan, const at::Tensor& ids);
  absl::Status Study(const CorpusPlan& plan, int layer, const SplitStream& fit, const SplitStream& held, Work& work,
                     at::Tensor& probed);
  // The probe of the `eligible` tokens with the largest scores, whose rows `rows` receives.
  absl::StatusOr<ProbeRun> Probe(const Surrogate& surrogate, const SplitStream& held, const at::Tensor& scores,
                                 const at::Tensor& eligible, Work& work, at::Tensor& rows) const;

  const ExperimentContext& context_;
  const PolynomialProbeMethod& method_;
  const std::span<const CorpusPlan> plans_;
  const std::vector<int> layers_;
  std::vector<ProbePart> parts_;  // of the corpus at hand, one a held-out block
  at::Tensor newlines_;           // of the corpus at hand
  size_t corpora_ = 0;
  std::vector<ProbeRun> runs_;
  std::vector<std::string> newline_settings_;
  std::vector<ReportArray> arrays_;
};

absl::Status ProbeStudy::CheckTokens(const CorpusPlan& plan) const {
  // Half of the probed tokens fit, before the ridge is tuned.
  if (ProbedTokens(plan) / 2 > method_.components) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("components is ", method_.components, "; high_share leaves ", static_cast<int64_t>(ProbedTokens(plan)),
             " tokens of ", plan.name, ", and half of them must be more than the components: give more gate_tokens"));
}

at::Tensor ProbeStudy::Newlines(const CorpusPlan& plan, const at::Tensor& ids) {
  const at::Tensor tokens = ids.cpu().contiguous().flatten();
  const std::span values(tokens.const_data_ptr<int64_t>(), static_cast<size_t>(tokens.numel()));
  std::map<int64_t, int64_t> counts;
  for (const int64_t token : values) ++counts[token];
  std::erase_if(counts,
                [&](const auto& entry) { return !IsNewline(context_.token_text, static_cast<int32_t>(entry.first)); });
  at::Tensor newlines = at::zeros({tokens.numel()}, at::kBool);
  std::vector<std::string> shown;
  for (const auto& [token, count] : counts) {
    shown.push_back(
        StrCat("‹", TokenWord(context_.token_text, static_cast<int32_t>(token)), "› (id ", token, ", ", count, ")"));
  }
  for (size_t i = 0; i < values.size(); ++i) newlines.mutable_data_ptr<bool>()[i] = counts.contains(values[i]);
  newline_settings_.push_back(StrCat(plans_.size() == 1 ? "" : StrCat(plan.name, ": "),
                                     shown.empty() ? std::string("none") : absl::StrJoin(shown, ", ")));
  return newlines.to(ids.device());
}

absl::StatusOr<ProbeRun> ProbeStudy::Probe(const Surrogate& surrogate, const SplitStream& held,
                                           const at::Tensor& scores, const at::Tensor& eligible, Work& work,
                                           at::Tensor& rows) const {
  const int64_t count = eligible.sum().item<int64_t>();
  const auto high = static_cast<int64_t>(method_.high_share * static_cast<double>(count));
  rows = std::get<1>(at::where(eligible, scores, -1.0).topk(high));
  rows = std::get<0>(rows.sort());  // as the text has them
  ProbeTokens tokens;
  tokens.x = held.x().flatten(0, 1).index_select(0, rows);
  const at::Tensor y = held.y().flatten(0, 1).index_select(0, rows);
  tokens.delta = y - surrogate.Predict(tokens.x);
  const at::Tensor on_cpu = rows.cpu().contiguous();
  for (int64_t i = 0; i < high; ++i) tokens.blocks.push_back(on_cpu.const_data_ptr<int64_t>()[i] / held.window());
  ProbeRun run;
  run.relative = (RowNorms(tokens.delta) / RowNorms(y).clamp_min(1e-30)).mean().item<double>();
  run.newlines = newlines_.index_select(0, rows).sum().item<int64_t>();
  const double a_fit = static_cast<double>(high);
  GH_ASSIGN_OR_RETURN(run.findings, FitPolynomials(tokens, parts_, method_, context_.options.bootstrap_resamples,
                                                   context_.options.seed, [&] { return work.Step(a_fit); }));
  return run;
}

absl::Status ProbeStudy::Study(const CorpusPlan& plan, int layer, const SplitStream& fit, const SplitStream& held,
                               Work& work, at::Tensor& probed) {
  const ExperimentOptions& options = context_.options;
  GH_ASSIGN_OR_RETURN(const FittedMlp fitted,
                      FitMlp(context_.model, layer, fit, options.sink_positions, options.ridge, work));
  std::vector<at::Tensor> scores, kept;
  GH_RETURN_IF_ERROR(held.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * held.window())));
    const at::Tensor x = held.x().narrow(0, first, count), y = held.y().narrow(0, first, count);
    scores.push_back(RowNorms(y - fitted.surrogate.Predict(x)).flatten().to(at::kDouble));
    kept.push_back(KeptByNorm(RowNorms(y), options.sink_positions, fitted.norm_limit).flatten());
    return absl::OkStatus();
  }));
  const at::Tensor score = at::cat(scores), eligible = at::cat(kept);
  const bool any_newlines = newlines_.logical_and(eligible).any().item<bool>();
  probed = at::zeros({held.tokens()}, at::TensorOptions(at::kLong).device(score.device()));
  for (const char* const which : {kAllTokens, kWithoutNewlines}) {
    const bool all = which == std::string_view(kAllTokens);
    if (!all && !any_newlines) continue;
    at::Tensor rows;
    GH_ASSIGN_OR_RETURN(ProbeRun run, Probe(fitted.surrogate, held, score,
                                            all ? eligible : eligible.logical_and(~newlines_), work, rows));
    probed.index_add_(0, rows, at::full({rows.size(0)}, all ? 1 : 2, probed.options()));
    run.corpus = plan.name;
    run.layer = layer;
    run.tokens = which;
    runs_.push_back(std::move(run));
  }
  return absl::OkStatus();
}

absl::Status ProbeStudy::Run(const CorpusPlan& plan, Work& work) {
  SplitStream fit = plan.Stream(context_.model, plan.splits.fit), held = plan.Stream(context_.model, plan.HeldOut());
  parts_ = DealProbeBlocks(held.blocks(), context_.options.seed);
  newlines_ = Newlines(plan, held.ids());
  std::vector<at::Tensor> probed;
  SplitStream* const streams[] = {&fit, &held};
  GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("probe on ", plan.name), work, [&](int layer) -> absl::Status {
    GH_RETURN_IF_ERROR(fit.KeepOutputs(work));
    GH_RETURN_IF_ERROR(held.KeepOutputs(work));
    probed.emplace_back();
    return Study(plan, layer, fit, held, work, probed.back());
  }));
  const size_t number = ++corpora_;
  std::vector<int64_t> parts;
  for (const ProbePart part : parts_) parts.push_back(static_cast<int64_t>(part));
  arrays_.push_back(ArrayOf(StrCat("probed.", number), at::stack(probed).view({-1, held.blocks(), held.window()})));
  arrays_.push_back({StrCat("part.", number), {held.blocks()}, std::move(parts)});
  return absl::OkStatus();
}

ExperimentResult ProbeStudy::Finish() && {
  ExperimentResult result;
  Report& report = result.report;
  DescribeProtocol(context_, plans_, report);
  report.notes.resize(1);  // of the sinks; nothing here rests on the report split alone
  report.settings.emplace_back("degrees", absl::StrJoin(method_.degrees, ", "));
  report.settings.emplace_back("components", StrCat(method_.components));
  report.settings.emplace_back("probe_ridge", StrCat(method_.ridge, ", on standardised features"));
  report.settings.emplace_back("high_share", StrCat(method_.high_share, " of the tokens, those of largest ‖δ‖"));
  report.settings.emplace_back("blocks", "of gate, select and report splits: 70 % train, 30 % test");
  report.settings.emplace_back("newline_tokens", absl::StrJoin(newline_settings_, "; "));
  DescribeProbe(runs_, report);
  if (!context_.token_text) {
    report.notes.emplace_back("The texts of tokens are not known here, so newline tokens were not told from others.");
  }
  result.arrays = std::move(arrays_);
  return result;
}

absl::Status CheckFeatures(const PolynomialProbeMethod& method) {
  const int degree = std::max(2, *std::max_element(method.degrees.begin(), method.degrees.end()));
  const int64_t features = PolynomialFeatures(method.components, degree, true);
  if (features <= kMostPolynomialFeatures) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("components is ", method.components, ", which makes ", features,
                                           " features at degree ", degree, "; at most ", kMostPolynomialFeatures));
}

}  // namespace

absl::StatusOr<ExperimentResult> ProbePolynomials(const ExperimentContext& context,
                                                  const PolynomialProbeMethod& method) {
  GH_RETURN_IF_ERROR(CheckFeatures(method));
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  ProbeStudy study(context, method, plans);
  for (const CorpusPlan& plan : plans) GH_RETURN_IF_ERROR(study.CheckTokens(plan));
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, study));
  return std::move(study).Finish();
}

}  // namespace gatehouse
