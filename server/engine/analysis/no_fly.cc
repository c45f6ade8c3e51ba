#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>
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
#include "server/engine/analysis/no_fly_report.h"
#include "server/engine/analysis/report_columns.h"
#include "server/engine/analysis/token_damage.h"

namespace gatehouse {
namespace {

// No-fly lists ("Half the Nonlinearity Is Wasted", methods A.5): the tokens that a linear layer
// harms on one text, and whether other texts, with surrogates of their own, agree.  By the
// target token, which a position predicts, as in the paper; and by the processed token, which
// is what a router could look at.

constexpr int kSplits = 20;        // random halves of each text
constexpr int kListShuffles = 20;  // of the null
constexpr size_t kMostListedRows = 5000;
constexpr size_t kMostScatterRows = 5000;
constexpr size_t kMostScatters = 3;

// What a token is to its occurrence.
enum Role { kTarget, kProcessed, kRoles };
constexpr const char* kRoleNames[] = {"target", "processed"};

// δCE of a text's held-out tokens.
struct Text {
  std::string name;
  Occurrences by[kRoles];
  std::vector<std::vector<double>> delta;  // one a chosen layer, one an occurrence
  std::vector<BlockMask> halves;

  TokenDamage Damage(Role role, size_t layer) const { return {by[role], delta[layer], halves}; }
};

class NoFlyStudy {
 public:
  NoFlyStudy(const ExperimentContext& context, const NoFlyMethod& rule)
      : context_(context), rule_(rule), layers_(ChosenLayers(context)) {}

  double WorkOf(const CorpusPlan& plan) const {
    const double fit = static_cast<double>(plan.splits.fit.size()) * plan.splits.window;
    const double held = static_cast<double>(plan.HeldOut().size()) * plan.splits.window;
    const int layers = context_.model.config.layers;
    double work = held * (layers + 1) + (fit + held) * PassingWork(layers_);
    for (const int layer : layers_) work += 2 * fit + held * (layers - layer);
    return work;
  }

  // δCE of one text: its own surrogates, its held-out tokens.
  absl::Status Measure(const CorpusPlan& plan, Work& work);
  absl::Status Compare(Work& work);
  ExperimentResult Finish(std::span<const CorpusPlan> plans) &&;

 private:
  std::string TextOf(int32_t token) const { return context_.token_text ? context_.token_text(token) : StrCat(token); }
  void List(const Text& text, size_t number);
  std::vector<ScatterRow> Scatter(const Text& first, const Text& second, size_t layer, bool& cut) const;
  size_t LayerOfMostListed(const Text& text) const;
  std::string Summarize(const Text& first, const Text& second) const;

  const ExperimentContext& context_;
  const NoFlyMethod& rule_;
  const std::vector<int> layers_;
  std::vector<Text> texts_;
  std::vector<AgreementRow> agreements_[kRoles];
  std::vector<ListedRow> listed_;
  std::vector<ReportArray> arrays_;
};

absl::Status NoFlyStudy::Measure(const CorpusPlan& plan, Work& work) {
  const ModelWeights& model = context_.model;
  const ExperimentOptions& options = context_.options;
  SplitStream fit = plan.Stream(model, plan.splits.fit), held = plan.Stream(model, plan.HeldOut());
  work.SetStage("perplexity of the full model");
  GH_RETURN_IF_ERROR(MeasureFullModel(held, work));

  Text text;
  text.name = plan.name;
  const auto blocks = static_cast<int32_t>(held.blocks());
  const int64_t window = held.window(), first = options.sink_positions;
  std::vector<int32_t> tokens[kRoles], block_of;
  const at::Tensor ids = held.ids().cpu().contiguous();
  for (int32_t block = 0; block < blocks; ++block) {
    const int64_t* row = ids.const_data_ptr<int64_t>() + block * window;
    for (int64_t i = first; i + 1 < window; ++i) {
      tokens[kTarget].push_back(static_cast<int32_t>(row[i + 1]));
      tokens[kProcessed].push_back(static_cast<int32_t>(row[i]));
      block_of.push_back(block);
    }
  }
  for (const Role role : {kTarget, kProcessed}) text.by[role] = Occurrences::Of(tokens[role], block_of, blocks);
  text.halves = RandomHalves(blocks, kSplits, options.seed);

  SplitStream* const streams[] = {&fit, &held};
  GH_RETURN_IF_ERROR(ForLayers(layers_, streams, StrCat("δCE on ", plan.name), work, [&](int layer) -> absl::Status {
    GH_ASSIGN_OR_RETURN(const FittedMlp fitted, FitMlp(model, layer, fit, options.sink_positions, options.ridge, work));
    GH_ASSIGN_OR_RETURN(const at::Tensor linear,
                        LinearCrossEntropy(model, layer, held, fitted.surrogate, options.sink_positions, work));
    const at::Tensor delta =
        (linear - held.full_cross_entropy()).narrow(1, first, window - 1 - first).cpu().contiguous();
    text.delta.emplace_back(delta.const_data_ptr<double>(), delta.const_data_ptr<double>() + delta.numel());
    return absl::OkStatus();
  }));
  texts_.push_back(std::move(text));
  return absl::OkStatus();
}

absl::Status NoFlyStudy::Compare(Work& work) {
  work.SetStage("comparing the texts");
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const Role role : {kTarget, kProcessed}) {
      for (const Text& lister : texts_) {
        const double by_chance =
            ListedByChance(lister.by[role], lister.delta[layer], rule_, kListShuffles, context_.options.seed);
        for (const Text& judge : texts_) {
          GH_RETURN_IF_ERROR(work.Step(1));
          const TokenDamage damage = lister.Damage(role, layer);
          AgreementRow row{.lister = lister.name,
                           .judge = judge.name,
                           .series = StrCat(lister.name, " judged by ", judge.name),
                           .layer = layers_[layer],
                           .listed_by_chance = by_chance};
          if (row.OneText()) {
            row.series = StrCat("halves of ", lister.name);
            row.agreement = CompareHalves(damage, rule_);
          } else {
            row.agreement = CompareTexts(damage, judge.Damage(role, layer), rule_);
          }
          agreements_[role].push_back(std::move(row));
        }
      }
    }
  }
  for (size_t i = 0; i < texts_.size(); ++i) List(texts_[i], i + 1);
  return absl::OkStatus();
}

// The lists of one text, and its means as arrays.
void NoFlyStudy::List(const Text& text, size_t number) {
  std::vector<int64_t> lists;  // rows of layer, role, token
  for (const Role role : {kTarget, kProcessed}) {
    const std::vector<int32_t>& tokens = text.by[role].tokens;
    const auto distinct = static_cast<int64_t>(tokens.size());
    std::vector<int64_t> counts;
    std::vector<float> means;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const std::vector<TokenMean> found = MeansByToken(text.by[role], text.delta[layer]);
      for (size_t i = 0; i < found.size(); ++i) {
        if (layer == 0) counts.push_back(found[i].count);
        means.push_back(static_cast<float>(found[i].mean));
        if (!IsListed(found[i], rule_)) continue;
        listed_.push_back({text.name, kRoleNames[role], layers_[layer], tokens[i], TextOf(tokens[i]), found[i]});
        lists.insert(lists.end(), {layers_[layer], role, tokens[i]});
      }
    }
    const auto name = [&](const char* what) { return StrCat(what, "_", kRoleNames[role], ".", number); };
    arrays_.push_back({name("token"), {distinct}, std::vector<int64_t>(tokens.begin(), tokens.end())});
    arrays_.push_back({name("count"), {distinct}, std::move(counts)});
    arrays_.push_back({name("mean"), {static_cast<int64_t>(layers_.size()), distinct}, std::move(means)});
  }
  const auto entries = static_cast<int64_t>(lists.size()) / 3;
  arrays_.push_back({StrCat("listed.", number), {entries, 3}, std::move(lists)});
  std::vector<int64_t> halves;
  for (const BlockMask& mask : text.halves) halves.insert(halves.end(), mask.begin(), mask.end());
  arrays_.push_back({StrCat("halves.", number), {kSplits, text.by[kTarget].blocks}, std::move(halves)});
}

size_t NoFlyStudy::LayerOfMostListed(const Text& text) const {
  size_t best = 0;
  int64_t most = -1;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::vector<TokenMean> means = MeansByToken(text.by[kTarget], text.delta[layer]);
    const int64_t listed =
        std::count_if(means.begin(), means.end(), [&](const TokenMean& mean) { return IsListed(mean, rule_); });
    if (listed > most) {
      most = listed;
      best = layer;
    }
  }
  return best;
}

// Every target token that both texts have often enough, the commonest first.
std::vector<ScatterRow> NoFlyStudy::Scatter(const Text& first, const Text& second, size_t layer, bool& cut) const {
  const std::vector<int32_t>& a = first.by[kTarget].tokens;
  const std::vector<int32_t>& b = second.by[kTarget].tokens;
  const std::vector<TokenMean> a_means = MeansByToken(first.by[kTarget], first.delta[layer]);
  const std::vector<TokenMean> b_means = MeansByToken(second.by[kTarget], second.delta[layer]);
  std::vector<ScatterRow> rows;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto found = std::lower_bound(b.begin(), b.end(), a[i]);
    if (found == b.end() || *found != a[i]) continue;
    const TokenMean& other = b_means[found - b.begin()];
    if (a_means[i].count < rule_.least_count_other || other.count < rule_.least_count_other) continue;
    const bool one = IsListed(a_means[i], rule_), two = IsListed(other, rule_);
    const std::string list = one && two ? "both" : one ? first.name : two ? second.name : "none";
    rows.push_back({a[i], TextOf(a[i]), list, a_means[i], other});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ScatterRow& x, const ScatterRow& y) {
    return std::min(x.first.count, x.second.count) > std::min(y.first.count, y.second.count);
  });
  cut = rows.size() > kMostScatterRows;
  if (cut) rows.resize(kMostScatterRows);
  return rows;
}

double Median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// What was found of one text's lists by target token, as another judges them.
std::string NoFlyStudy::Summarize(const Text& first, const Text& second) const {
  double listed = 0, by_chance = 0, judged = 0, flipped = 0, own_judged = 0, own_flipped = 0;
  std::vector<double> r_listed, r_shared, ceilings;
  for (const AgreementRow& row : agreements_[kTarget]) {
    if (row.lister != first.name) continue;
    if (row.OneText()) {
      own_judged += row.agreement.judged;
      own_flipped += row.agreement.flipped;
    }
    if (row.judge != second.name) continue;
    listed += row.agreement.listed;
    by_chance += row.listed_by_chance;
    judged += row.agreement.judged;
    flipped += row.agreement.flipped;
    r_listed.push_back(row.agreement.r_listed);
    r_shared.push_back(row.agreement.r_shared);
    ceilings.push_back(row.agreement.ceiling);
  }
  const auto number = [](double value) { return std::isnan(value) ? "none" : absl::StrFormat("%.2f", value); };
  const auto share = [](double part, double whole) { return whole > 0 ? Percent(part / whole) : std::string("none"); };
  return StrCat(first.name, " lists ", listed, " target tokens over ", layers_.size(),
                layers_.size() == 1 ? " layer (" : " layers (", absl::StrFormat("%.1f", by_chance), " by chance); on ",
                second.name, " ", share(flipped, judged), " of the ", judged,
                " that can be judged flip their sign, against ", share(own_flipped, own_judged), " between halves of ",
                first.name, " itself. Median r over the layers is ", number(Median(r_listed)), " over listed and ",
                number(Median(r_shared)), " over all shared tokens, where noise alone lets at most ",
                number(Median(ceilings)), " be expected.");
}

ExperimentResult NoFlyStudy::Finish(std::span<const CorpusPlan> plans) && {
  ExperimentResult result;
  Report& report = result.report;
  report.title = "No-fly lists";
  DescribeProtocol(context_, plans, report);
  report.settings.emplace_back(
      "rule", StrCat("mean > ", rule_.least_mean, " nats, n >= ", rule_.least_count, ", share of positive > ",
                     rule_.least_positive, "; judged with n >= ", rule_.least_count_other));
  report.settings.emplace_back("halves", StrCat(kSplits, " random halves of each text's blocks"));
  report.notes = {std::move(report.notes.front()),  // of the sinks; nothing here rests on the report split alone
                  "δCE is over the tokens of the gate, select and report splits, with the surrogate of each text's own "
                  "fit split.",
                  "A low r means nothing without its ceiling. A listed token is chosen for a large mean, part of which "
                  "is luck, so its mean on any other text is smaller: compare with the halves of one text.",
                  "Who predicts a target token does not know it yet, so only a list by processed token could steer a "
                  "router."};
  std::stable_sort(listed_.begin(), listed_.end(),
                   [](const ListedRow& a, const ListedRow& b) { return a.mean.mean > b.mean.mean; });
  if (listed_.size() > kMostListedRows) {
    report.notes.push_back(StrCat("The table of lists shows the ", kMostListedRows, " largest means of ",
                                  listed_.size(), "; the arrays have all."));
    listed_.resize(kMostListedRows);
  }
  for (const Role role : {kTarget, kProcessed})
    report.tables.push_back(AgreementTable(agreements_[role], kRoleNames[role]));
  report.tables.push_back(ListedTable(listed_));

  const size_t pairs = texts_.size() * (texts_.size() - 1) / 2;
  for (size_t i = 0; i < texts_.size(); ++i) {
    for (size_t j = i + 1; j < texts_.size(); ++j) {
      const Text &first = texts_[i], &second = texts_[j];
      report.summary += StrCat(report.summary.empty() ? "" : " ", Summarize(first, second));
      if (report.plots.size() == kMostScatters) continue;
      const size_t layer = LayerOfMostListed(first);
      bool cut = false;
      const std::string name = StrCat("scatter_", i + 1, "_", j + 1);
      report.tables.push_back(
          ScatterTable(Scatter(first, second, layer, cut), name, first.name, second.name, layers_[layer]));
      if (cut) {
        report.notes.push_back(
            StrCat("Table ", name, " shows the ", kMostScatterRows, " commonest tokens; the arrays have all."));
      }
      report.plots.push_back({.kind = ReportPlot::Kind::kScatter,
                              .title = StrCat("Who agrees at layer ", layers_[layer]),
                              .caption = StrCat("Mean δCE of target tokens in nats, ", first.name, " across and ",
                                                second.name, " up, by who lists them; the layer of the longest list."),
                              .table = name,
                              .x = "mean_first",
                              .y = "mean_second",
                              .low = "",
                              .high = "",
                              .series = "list",
                              .label = "text"});
    }
  }
  if (pairs > kMostScatters) {
    report.notes.push_back(
        StrCat("Scatter tables are of the first ", kMostScatters, " of ", pairs, " pairs of texts."));
  }
  const auto line = [](const char* title, const char* caption, const char* y) {
    return ReportPlot{.kind = ReportPlot::Kind::kLine,
                      .title = title,
                      .caption = caption,
                      .table = "agreement_target",
                      .x = "layer",
                      .y = y,
                      .low = "",
                      .high = "",
                      .series = "series",
                      .label = ""};
  };
  report.plots.push_back(line("Agreement over all shared tokens",
                              "Pearson's r of two texts' mean δCE by target token; between halves of one text for "
                              "comparison.",
                              "r_shared"));
  report.plots.push_back(
      line("Listed tokens that flip their sign", "Share of the judged tokens of each list.", "flipped_share"));
  result.arrays = std::move(arrays_);
  return result;
}

}  // namespace

absl::StatusOr<ExperimentResult> FindNoFlyLists(const ExperimentContext& context, const NoFlyMethod& method) {
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  NoFlyStudy study(context, method);
  double total = 0;
  for (const CorpusPlan& plan : plans) total += study.WorkOf(plan);
  Work work(total, context.progress, context.cancelled);
  for (const CorpusPlan& plan : plans) GH_RETURN_IF_ERROR(study.Measure(plan, work));
  GH_RETURN_IF_ERROR(study.Compare(work));
  return std::move(study).Finish(plans);
}

}  // namespace gatehouse
