// What each ingredient of whole-model gating (methods A.7) is worth on one model: the share
// of MLP work saved within budgets of whole-model perplexity, as a table in Markdown.
//
//   gatehouse-frontier-bench MODEL_DIRECTORY --text FILE [--held-out FILE] [--NAME VALUE]...
//
// Surrogates, gates and tuning see the fit and gate blocks of the text, points are chosen on
// its select blocks and every figure is of its report blocks; with --held-out the last row's
// points are measured on that text as well.  Options: --fit-tokens, --gate-tokens,
// --select-tokens, --report-tokens, --held-out-tokens, --tune-steps, --tune-sequences,
// --tune-work-percent, --ladder-percent, --seed, --dtype (float32 or bfloat16), and --rows, a
// list of row numbers such as 3,4,6.

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/corpus_splits.h"
#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/analysis/mlp_profile.h"
#include "server/engine/analysis/operating_points.h"
#include "server/engine/analysis/statistics.h"
#include "server/engine/analysis/whole_model_gating.h"
#include "server/engine/torch_boundary.h"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse {
namespace {

constexpr double kBudgets[] = {0.005, 0.01, 0.02, 0.05};
constexpr int kResamples = 10'000;

using Flags = std::map<std::string, std::string>;

absl::StatusOr<int64_t> Number(const Flags& flags, const std::string& name, int64_t otherwise) {
  const auto found = flags.find(name);
  if (found == flags.end()) return otherwise;
  int64_t value = 0;
  if (!absl::SimpleAtoi(found->second, &value)) {
    return absl::InvalidArgumentError(StrCat(name, " is not a number: ", found->second));
  }
  return value;
}

absl::StatusOr<CalibrateOptions> ReadOptions(const Flags& flags) {
  CalibrateOptions options;
  options.budget.budgets = {0.01};
  GH_ASSIGN_OR_RETURN(options.fit_tokens, Number(flags, "--fit-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.gate_tokens, Number(flags, "--gate-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.select_tokens, Number(flags, "--select-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.report_tokens, Number(flags, "--report-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.budget.tune_steps, Number(flags, "--tune-steps", 0));
  GH_ASSIGN_OR_RETURN(options.budget.tune_sequences, Number(flags, "--tune-sequences", options.budget.tune_sequences));
  GH_ASSIGN_OR_RETURN(const int64_t work, Number(flags, "--tune-work-percent", 30));
  options.budget.tune_work_saved = static_cast<double>(work) / 100;
  GH_ASSIGN_OR_RETURN(const int64_t share, Number(flags, "--ladder-percent", 25));
  options.budget.ladder_share = static_cast<double>(share) / 100;
  GH_ASSIGN_OR_RETURN(options.seed, Number(flags, "--seed", 0));
  return options;
}

class Frontier {
 public:
  Frontier(const ModelWeights& model, const CalibrateOptions& options, std::span<const int32_t> tokens,
           const CorpusSplits& splits)
      : model_(model),
        options_(options),
        fit_(model, tokens, splits.fit, splits.window),
        gate_(model, tokens, splits.gate, splits.window),
        select_(model, tokens, splits.select, splits.window),
        report_(model, tokens, splits.report, splits.window) {}

  absl::Status Run(const std::set<int>& rows) {
    for (SplitStream* split : {&gate_, &select_, &report_}) GH_RETURN_IF_ERROR(split->MeasureFull(work_));
    std::printf("fit %lld, gate %lld, select %lld, report %lld tokens in blocks of %lld; seed %llu\n\n",
                static_cast<long long>(fit_.tokens()), static_cast<long long>(gate_.tokens()),
                static_cast<long long>(select_.tokens()), static_cast<long long>(report_.tokens()),
                static_cast<long long>(fit_.window()), static_cast<unsigned long long>(options_.seed));
    std::printf("| | ingredients | 0.5 %% | 1 %% | 2 %% | 5 %% |\n|---|---|---|---|---|---|\n");
    if (rows.contains(1)) GH_RETURN_IF_ERROR(Independent(1, "each layer by itself (A.1, A.3), sinks in", true));
    if (rows.contains(2)) GH_RETURN_IF_ERROR(Independent(2, "each layer by itself, sinks left out", false));
    const struct {
      int number;
      const char* name;
      bool ladders, sequential, tune;
    } whole[] = {
        {3, "joint thresholds", false, false, false},
        {4, "joint thresholds, ladders", true, false, false},
        {5, "joint thresholds, ladders, in sequence", true, true, false},
        {6, "joint thresholds, tuned", false, false, true},
        {7, "joint thresholds, ladders, tuned", true, false, true},
        {8, "joint thresholds, ladders, in sequence, tuned", true, true, true},
    };
    for (const auto& row : whole) {
      if (!rows.contains(row.number)) continue;
      CalibrateOptions options = options_;
      options.budget.ladders = row.ladders;
      options.budget.sequential = row.sequential;
      options.budget.tune = row.tune;
      GH_RETURN_IF_ERROR(FitOnce());
      const double start = MonotonicSeconds();
      GH_ASSIGN_OR_RETURN(WholeModelGating gating,
                          GateWholeModel(model_, options, fitted_, {fit_, gate_, select_, report_}, work_));
      Print(row.number, row.name, gating.points, MonotonicSeconds() - start);
      last_ = std::move(gating);
    }
    return absl::OkStatus();
  }

  // The last row's points on another text.
  absl::Status HeldOut(std::span<const int32_t> tokens, int64_t most) {
    const int64_t window = fit_.window();
    std::vector<int64_t> blocks(std::min<int64_t>(static_cast<int64_t>(tokens.size()), most) / window);
    std::iota(blocks.begin(), blocks.end(), 0);
    SplitStream text(model_, tokens, blocks, static_cast<int>(window));
    GH_RETURN_IF_ERROR(text.MeasureFull(work_));
    for (OperatingPoint& point : last_.points) {
      GH_ASSIGN_OR_RETURN(const PointRun run,
                          RunAtPoint(model_, last_.paths, point.layers, options_.sink_positions, text, work_));
      const Interval cost =
          BootstrapPerplexityChange(text.full_cross_entropy(), run.cross_entropy, kResamples, options_.seed);
      point.cost = cost.estimate;
      point.cost_low = cost.low;
      point.cost_high = cost.high;
      point.work_saved = MlpWorkSaved(WorkShape(model_.config), run.traffic);
    }
    Print(9, StrCat("the row before on the held-out text (", text.tokens(), " tokens)"), last_.points, 0);
    return absl::OkStatus();
  }

 private:
  absl::Status FitOnce() {
    if (!fitted_.empty()) return absl::OkStatus();
    fit_.Restart();
    for (int layer = 0; layer < model_.config.layers; ++layer) {
      GH_RETURN_IF_ERROR(fit_.Enter(layer, work_));
      GH_ASSIGN_OR_RETURN(FittedMlp fitted,
                          FitMlp(model_, layer, fit_, options_.sink_positions, options_.ridge, work_));
      fitted_.push_back(std::move(fitted));
      GH_RETURN_IF_ERROR(fit_.Leave(work_));
    }
    return absl::OkStatus();
  }

  // Surrogates and gates as the paper has them, one threshold for all layers.
  absl::Status Independent(int number, const char* name, bool with_sinks) {
    const int sinks = with_sinks ? 0 : options_.sink_positions;
    std::vector<CheapPaths> paths;
    const double start = MonotonicSeconds();
    for (SplitStream* split : {&fit_, &gate_}) split->Restart();
    for (int layer = 0; layer < model_.config.layers; ++layer) {
      for (SplitStream* split : {&fit_, &gate_}) GH_RETURN_IF_ERROR(split->Enter(layer, work_));
      GH_ASSIGN_OR_RETURN(const FittedMlp fitted, FitMlp(model_, layer, fit_, sinks, options_.ridge, work_));
      const Surrogate& surrogate = with_sinks ? fitted.with_sinks : fitted.surrogate;
      GH_ASSIGN_OR_RETURN(const at::Tensor linear, LinearCrossEntropy(model_, layer, gate_, surrogate, sinks, work_));
      const int64_t predicted = gate_.window() - 1 - sinks;
      const at::Tensor delta = (linear - gate_.full_cross_entropy()).narrow(1, sinks, predicted).flatten();
      const std::vector<uint8_t> labels =
          GateLabels({delta.const_data_ptr<double>(), static_cast<size_t>(delta.numel())});
      GH_ASSIGN_OR_RETURN(const LogisticGate gate,
                          FitLogisticGate(gate_.x().narrow(1, sinks, predicted).flatten(0, 1), labels));
      CheapPaths& of = paths.emplace_back();
      of.surrogate_weight = surrogate.weight;
      of.surrogate_bias = surrogate.bias;
      of.gate_weight = gate.weight;
      of.gate_bias = gate.bias;
      for (SplitStream* split : {&fit_, &gate_}) GH_RETURN_IF_ERROR(split->Leave(work_));
    }
    const PointSearchOptions search{.budgets = {std::begin(kBudgets), std::end(kBudgets)},
                                    .sinks = sinks,
                                    .resamples = kResamples,
                                    .seed = options_.seed};
    GH_ASSIGN_OR_RETURN(const auto points, FindOperatingPoints(model_, paths, search, select_, report_, work_));
    Print(number, name, points, MonotonicSeconds() - start);
    return absl::OkStatus();
  }

  static void Print(int number, std::string_view name, const std::vector<OperatingPoint>& points, double seconds) {
    std::printf("| %d | %.*s |", number, static_cast<int>(name.size()), name.data());
    for (const double budget : kBudgets) {
      for (const OperatingPoint& point : points) {
        if (point.budget != budget) continue;
        std::printf(" %.1f %% at %+.2f %% (%+.2f to %+.2f) |", 100 * point.work_saved, 100 * point.cost,
                    100 * point.cost_low, 100 * point.cost_high);
      }
    }
    std::printf("\n");
    std::fflush(stdout);
    if (seconds > 0) std::fprintf(stderr, "\nrow %d: %.0f s\n", number, seconds);
  }

  const std::atomic<bool> cancelled_{false};
  const ProgressFn progress_ = [](double, std::string_view stage) {
    std::fprintf(stderr, "\r%-60.*s", static_cast<int>(stage.size()), stage.data());
  };
  Work work_{1e18, progress_, cancelled_};
  const ModelWeights& model_;
  const CalibrateOptions& options_;
  SplitStream fit_, gate_, select_, report_;
  std::vector<FittedMlp> fitted_;
  WholeModelGating last_;
};

absl::StatusOr<std::vector<int32_t>> ReadText(const std::string& model, const std::string& path) {
  GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  GH_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(model + "/tokenizer.json"));
  return tokenizer->Encode(text);
}

absl::Status Run(const std::string& directory, const Flags& flags) {
  GH_ASSIGN_OR_RETURN(const CalibrateOptions options, ReadOptions(flags));
  GH_RETURN_IF_ERROR(CheckBudgetOptions(options.budget));
  const auto dtype = flags.find("--dtype");
  const bool bfloat16 = dtype != flags.end() && dtype->second == "bfloat16";
  GH_ASSIGN_OR_RETURN(const ModelWeights model,
                      LoadModelWeights(directory, bfloat16 ? at::kBFloat16 : at::kFloat, at::kCPU));
  GH_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadText(directory, flags.at("--text")));
  GH_ASSIGN_OR_RETURN(const CorpusSplits splits,
                      PlanSplits(options, static_cast<int64_t>(tokens.size()), model.config));
  std::set<int> rows;
  const auto listed = flags.find("--rows");
  for (const auto& row : absl::StrSplit(listed == flags.end() ? "1,2,3,4,5,6,7,8" : listed->second, ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(row, &number)) return absl::InvalidArgumentError("--rows is no list of numbers");
    rows.insert(number);
  }
  return AtTorchBoundary([&]() -> absl::Status {
    Frontier frontier(model, options, tokens, splits);
    GH_RETURN_IF_ERROR(frontier.Run(rows));
    const auto held_out = flags.find("--held-out");
    if (held_out == flags.end()) return absl::OkStatus();
    GH_ASSIGN_OR_RETURN(const std::vector<int32_t> other, ReadText(directory, held_out->second));
    GH_ASSIGN_OR_RETURN(const int64_t most, Number(flags, "--held-out-tokens", 100'000));
    return frontier.HeldOut(other, most);
  });
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  gatehouse::Flags flags;
  for (int i = 2; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  if (argc < 4 || argc % 2 != 0 || !flags.contains("--text")) {
    std::fprintf(stderr,
                 "usage: gatehouse-frontier-bench MODEL_DIRECTORY --text FILE [--held-out FILE] [--NAME VALUE]...\n");
    return 2;
  }
  const absl::Status status = gatehouse::Run(argv[1], flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
