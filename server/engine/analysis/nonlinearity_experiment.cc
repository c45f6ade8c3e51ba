#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/item.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/analysis/nonlinearity_report.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/analysis/token_clusters.h"
#include "server/engine/analysis/token_words.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

// How nonlinear each layer is, token by token ("The Discrete Charm of the MLP", methods B.1), and
// what the most nonlinear tokens have in common (B.3).  The surrogates of all layers are fitted
// first; then the held-out text passes through the model in slabs, so that its length costs two
// numbers a token and layer.

constexpr int64_t kSlabTokens = 8192;
constexpr int64_t kMostClustered = 1500;  // tokens a layer
constexpr size_t kWordsShown = 5;

// The held-out tokens with the largest scores so far, descending, and what the MLP reads there.
struct Largest {
  at::Tensor scores;  // [n] float64
  at::Tensor tokens;  // [n] int64, index of the token
  at::Tensor x;       // [n, d_model] float32

  // From a batch whose first token is `first_token`: scores [tokens] float32 and what the MLP reads
  // [tokens, d_model] of all of it; only those at `rows` count.
  void Add(const at::Tensor& batch_scores, const at::Tensor& batch_x, const at::Tensor& rows, int64_t first_token,
           int64_t most) {
    const at::Tensor counted = batch_scores.index_select(0, rows);
    const auto [more_scores, order] = counted.topk(std::min(most, counted.size(0)));
    const at::Tensor more = rows.index_select(0, order);
    const bool first = !scores.defined();
    const at::Tensor all_scores = first ? more_scores.to(at::kDouble) : at::cat({scores, more_scores.to(at::kDouble)});
    const at::Tensor all_tokens = first ? more + first_token : at::cat({tokens, more + first_token});
    const at::Tensor more_x = batch_x.index_select(0, more);
    const at::Tensor all_x = first ? more_x : at::cat({x, more_x});
    const at::Tensor best = std::get<1>(all_scores.topk(std::min(most, all_scores.size(0))));
    scores = all_scores.index_select(0, best);
    tokens = all_tokens.index_select(0, best);
    x = all_x.index_select(0, best);
  }
};

// What one layer did on the held-out text.
struct LayerStudy {
  int layer = 0;
  FittedMlp fitted;
  std::vector<at::Tensor> delta, output;  // ‖δ‖ and ‖y‖ of each slab, [blocks, window] float32
  std::vector<at::Tensor> kept;           // no sinks, [blocks, window] bool
  std::vector<at::Tensor> r2;             // each block's Σ‖δ‖² and Σ‖y − ȳ_fit‖², [blocks, 2] float64
  Largest largest;
};

TokenScores ScoresOf(const LayerStudy& study) {
  const at::Tensor kept = at::cat(study.kept).cpu().flatten();
  const at::Tensor delta = at::cat(study.delta).cpu().flatten(), output = at::cat(study.output).cpu().flatten();
  TokenScores scores;
  for (int64_t i = 0; i < kept.numel(); ++i) {
    if (!kept.const_data_ptr<bool>()[i]) continue;
    const double score = delta.const_data_ptr<float>()[i], norm = output.const_data_ptr<float>()[i];
    scores.tokens.push_back(i);
    scores.score.push_back(score);
    scores.norm.push_back(norm);
    scores.relative.push_back(norm > 0 ? score / norm : 0);
  }
  return scores;
}

class NonlinearityStudy {
 public:
  NonlinearityStudy(const ExperimentContext& context, const NonlinearityMethod& method,
                    std::span<const CorpusPlan> plans)
      : context_(context), method_(method), plans_(plans), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const double fit = static_cast<double>(plan.splits.fit.size()) * plan.splits.window;
    const double held = static_cast<double>(plan.HeldOut().size()) * plan.splits.window;
    const auto layers = static_cast<double>(layers_.size());
    return (fit + held) * PassingWork(layers_) + (2 * fit + held) * layers + layers * kMostClustered;
  }

  absl::Status Run(const CorpusPlan& plan, Work& work);
  ExperimentResult Finish() &&;

 private:
  absl::Status Fit(const CorpusPlan& plan, Work& work);
  absl::Status Score(const CorpusPlan& plan, Work& work);
  absl::Status Observe(const SplitStream& slab, int64_t first_token, int64_t most, LayerStudy& study, Work& work) const;

  void Describe(const CorpusPlan& plan, const LayerStudy& study, const TokenScores& scores);
  // The cluster of every held-out token, −1 where it has none: [tokens] int64.
  at::Tensor Cluster(const CorpusPlan& plan, const LayerStudy& study, double p95);
  void DescribeClusters(const CorpusPlan& plan, const LayerStudy& study, const at::Tensor& tokens,
                        const TokenClusters& clusters);

  const ExperimentContext& context_;
  const NonlinearityMethod& method_;
  const std::span<const CorpusPlan> plans_;
  const std::vector<int> layers_;
  std::vector<LayerStudy> studies_;  // of the corpus at hand, one a chosen layer
  std::vector<int32_t> held_;        // its held-out tokens
  int64_t window_ = 0;
  size_t corpora_ = 0;
  NonlinearityFindings findings_;
  std::vector<ReportArray> arrays_;
};

absl::Status NonlinearityStudy::Fit(const CorpusPlan& plan, Work& work) {
  const ExperimentOptions& options = context_.options;
  SplitStream fit = plan.Stream(context_.model, plan.splits.fit);
  SplitStream* const streams[] = {&fit};
  studies_.clear();
  return ForLayers(layers_, streams, StrCat("surrogates on ", plan.name), work, [&](int layer) -> absl::Status {
    GH_RETURN_IF_ERROR(fit.KeepOutputs(work));
    LayerStudy study;
    study.layer = layer;
    GH_ASSIGN_OR_RETURN(study.fitted, FitMlp(context_.model, layer, fit, options.sink_positions, options.ridge, work));
    study.fitted.with_sinks = {};  // of no use here
    studies_.push_back(std::move(study));
    return absl::OkStatus();
  });
}

absl::Status NonlinearityStudy::Observe(const SplitStream& slab, int64_t first_token, int64_t most, LayerStudy& study,
                                        Work& work) const {
  const Surrogate& surrogate = study.fitted.surrogate;
  const at::Tensor mean = surrogate.output_mean.to(at::kFloat);
  return slab.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * slab.window())));
    const at::Tensor x = slab.x().narrow(0, first, count), y = slab.y().narrow(0, first, count);
    const at::Tensor delta = RowNorms(y - surrogate.Predict(x)), output = RowNorms(y);
    const at::Tensor kept = KeptByNorm(output, context_.options.sink_positions, study.fitted.norm_limit);
    study.delta.push_back(delta);
    study.output.push_back(output);
    study.kept.push_back(kept);
    const at::Tensor spread = RowNorms(y - mean);
    const auto squares_of_kept = [&](const at::Tensor& norms) {
      return (norms.to(at::kDouble).square() * kept).sum(1, /*keepdim=*/true);
    };
    study.r2.push_back(at::cat({squares_of_kept(delta), squares_of_kept(spread)}, 1).cpu());
    study.largest.Add(delta.flatten(), x.flatten(0, 1), kept.flatten().nonzero().squeeze(1),
                      first_token + first * slab.window(), most);
    return absl::OkStatus();
  });
}

absl::Status NonlinearityStudy::Score(const CorpusPlan& plan, Work& work) {
  const std::vector<int64_t> blocks = plan.HeldOut();
  window_ = plan.splits.window;
  held_.clear();
  const size_t a_slab = std::max<int64_t>(1, kSlabTokens / window_);
  // All that can lie above the 95th percentile.
  const int64_t held_tokens = static_cast<int64_t>(blocks.size()) * window_;
  const int64_t most = std::min(kMostClustered, held_tokens / 20 + 1);
  for (size_t first = 0; first < blocks.size(); first += a_slab) {
    const std::span<const int64_t> part = std::span(blocks).subspan(first, std::min(a_slab, blocks.size() - first));
    SplitStream slab = plan.Stream(context_.model, part);
    const at::Tensor ids = slab.ids().cpu().contiguous();
    held_.insert(held_.end(), ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
    SplitStream* const streams[] = {&slab};
    size_t at = 0;
    const std::string stage = StrCat("scores on ", plan.name, ", block ", first + 1, " of ", blocks.size());
    GH_RETURN_IF_ERROR(ForLayers(layers_, streams, stage, work, [&](int) -> absl::Status {
      GH_RETURN_IF_ERROR(slab.KeepOutputs(work));
      return Observe(slab, static_cast<int64_t>(first) * window_, most, studies_[at++], work);
    }));
  }
  return absl::OkStatus();
}

void NonlinearityStudy::DescribeClusters(const CorpusPlan& plan, const LayerStudy& study, const at::Tensor& tokens,
                                         const TokenClusters& clusters) {
  const auto clustered = static_cast<size_t>(tokens.size(0));
  const int64_t* indices = tokens.const_data_ptr<int64_t>();
  const at::Tensor scores = study.largest.scores.cpu().contiguous();
  std::vector<int32_t> all;
  for (size_t i = 0; i < clustered; ++i) all.push_back(held_[indices[i]]);
  for (size_t c = 0; c < clusters.sizes.size(); ++c) {
    ClusterRow row{.corpus = plan.name,
                   .layer = study.layer,
                   .cluster = static_cast<int>(c),
                   .tokens = clusters.sizes[c],
                   .share = static_cast<double>(clusters.sizes[c]) / static_cast<double>(clustered),
                   .silhouette = clusters.silhouettes[c]};
    std::vector<int32_t> own, before;
    for (size_t i = 0; i < clustered; ++i) {
      if (clusters.assignment[i] != static_cast<int>(c)) continue;
      own.push_back(all[i]);
      if (indices[i] % window_ > 0) before.push_back(held_[indices[i] - 1]);
      row.score += scores.const_data_ptr<double>()[i] / static_cast<double>(clusters.sizes[c]);
    }
    row.commonest = ShowCommonest(context_.token_text, own, kWordsShown);
    row.before = ShowCommonest(context_.token_text, before, kWordsShown);
    if (!own.empty()) {
      const auto [token, count] = Commonest(own, 1).front();
      row.commonest_share = static_cast<double>(count) / static_cast<double>(own.size());
      row.commonest_base =
          static_cast<double>(std::count(all.begin(), all.end(), token)) / static_cast<double>(clustered);
    }
    for (const int64_t i : clusters.central[c]) {
      const int64_t block = indices[i] / window_;
      row.examples += StrCat(row.examples.empty() ? "" : " | ",
                             ShowInContext(context_.token_text, std::span(held_).subspan(block * window_, window_),
                                           static_cast<size_t>(indices[i] % window_)));
    }
    findings_.clusters.push_back(std::move(row));
  }
}

at::Tensor NonlinearityStudy::Cluster(const CorpusPlan& plan, const LayerStudy& study, double p95) {
  at::Tensor cluster_of = at::tensor(std::vector<int64_t>(held_.size(), -1));
  StructureRow row{.corpus = plan.name,
                   .layer = study.layer,
                   .silhouette = kNone,
                   .null_mean = kNone,
                   .null_highest = kNone,
                   .explained = kNone,
                   .variance = kNone};

  row.tokens = (study.largest.scores > p95).sum().item<int64_t>();
  if (row.tokens >= FewestToCluster(method_.clusters)) {
    at::Tensor activations;
    PlainNeurons(context_.model, study.layer, study.largest.x.narrow(0, 0, row.tokens), &activations);
    const TokenClusters clusters = ClusterPatterns(activations, method_.clusters, context_.options.seed);
    row.silhouette = clusters.silhouette;
    row.null_mean = clusters.null_mean;
    row.null_highest = clusters.null_highest;
    row.structure = clusters.HaveStructure();
    row.explained = clusters.explained;
    row.variance = clusters.variance;
    const at::Tensor tokens = study.largest.tokens.narrow(0, 0, row.tokens).cpu().contiguous();
    for (int64_t i = 0; i < row.tokens; ++i) {
      cluster_of.mutable_data_ptr<int64_t>()[tokens.const_data_ptr<int64_t>()[i]] = clusters.assignment[i];
    }
    if (row.structure) DescribeClusters(plan, study, tokens, clusters);
  }
  findings_.structure.push_back(std::move(row));
  return cluster_of;
}

void NonlinearityStudy::Describe(const CorpusPlan& plan, const LayerStudy& study, const TokenScores& scores) {
  LayerRow row = DescribeLayer(plan.name, study.layer, scores);
  row.sinks = static_cast<int64_t>(held_.size() - scores.tokens.size());
  row.r2 = BlockBootstrap(at::cat(study.r2), context_.options.bootstrap_resamples, context_.options.seed,
                          [](const at::Tensor& totals) { return 1 - totals.select(1, 0) / totals.select(1, 1); });
  for (RegimeRow& regime : DescribeRegimes(plan.name, study.layer, scores, row.score)) {
    if (regime.regime == kHighRegime) row.high_residual_share = regime.residual_share;
    findings_.regimes.push_back(std::move(regime));
  }
  for (TokenRow& token : MostNonlinearTokens(plan.name, study.layer, scores, held_, row.score.p95)) {
    token.text = context_.token_text ? context_.token_text(token.token) : StrCat(token.token);
    findings_.tokens.push_back(std::move(token));
  }
  for (PercentileRow& percentile : DescribePercentiles(plan.name, study.layer, scores)) {
    findings_.percentiles.push_back(std::move(percentile));
  }
  findings_.layers.push_back(std::move(row));
}

absl::Status NonlinearityStudy::Run(const CorpusPlan& plan, Work& work) {
  GH_RETURN_IF_ERROR(Fit(plan, work));
  GH_RETURN_IF_ERROR(Score(plan, work));
  std::vector<at::Tensor> delta, output, kept, cluster;
  for (size_t i = 0; i < studies_.size(); ++i) {
    LayerStudy& study = studies_[i];
    work.SetStage(StrCat("clusters on ", plan.name, ": layer ", study.layer, ", ", i + 1, " of ", studies_.size()));
    GH_RETURN_IF_ERROR(work.Step(kMostClustered));
    const TokenScores scores = ScoresOf(study);
    if (scores.tokens.empty()) return absl::InternalError(StrCat("layer ", study.layer, ": every token is a sink"));
    Describe(plan, study, scores);
    cluster.push_back(Cluster(plan, study, findings_.layers.back().score.p95));
    delta.push_back(at::cat(study.delta));
    output.push_back(at::cat(study.output));
    kept.push_back(at::cat(study.kept));
    study = {};
  }
  const size_t number = ++corpora_;
  const auto blocks = static_cast<int64_t>(held_.size()) / window_;
  arrays_.push_back({StrCat("token.", number), {blocks, window_}, std::vector<int64_t>(held_.begin(), held_.end())});
  arrays_.push_back(ArrayOf(StrCat("score.", number), at::stack(delta)));
  arrays_.push_back(ArrayOf(StrCat("output_norm.", number), at::stack(output)));
  arrays_.push_back(ArrayOf(StrCat("kept.", number), at::stack(kept)));
  arrays_.push_back(ArrayOf(StrCat("cluster.", number), at::stack(cluster).view({-1, blocks, window_})));
  return absl::OkStatus();
}

ExperimentResult NonlinearityStudy::Finish() && {
  ExperimentResult result;
  Report& report = result.report;
  DescribeProtocol(context_, plans_, report);
  report.notes.resize(1);  // of the sinks; nothing here rests on the report split alone
  report.settings.emplace_back("clusters", StrCat(method_.clusters));
  report.settings.emplace_back("patterns",
                               StrCat("activations of the tokens above P95 (at most ", kMostClustered,
                                      ", the largest scores), each scaled to unit length, on ", kPatternComponents,
                                      " principal components; k-means++; ", kClusterNulls, " clouds to compare with"));
  DescribeNonlinearity(findings_, report);
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> MeasureNonlinearity(const ExperimentContext& context,
                                                     const NonlinearityMethod& method) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  NonlinearityStudy study(context, method, plans);
  GH_RETURN_IF_ERROR(RunOnEach(context, plans, study));
  return std::move(study).Finish();
}

}  // namespace gatehouse
