// Calibrates a model without a server: reads a text or a file of token ids, writes the
// calibration file and prints its figures.
//
//   calibrate_probe MODEL_DIRECTORY OUTPUT (--text FILE | --tokens FILE) [--NAME VALUE]...
//
// A token file holds little-endian int32 ids.  Options: --name, --corpus (a label),
// --fit-tokens, --gate-tokens, --select-tokens, --report-tokens, --window-tokens,
// --sink-positions, --seed, --splits FILE, where the blocks of each split go as JSON; and for
// whole-model gating --budgets (a list such as 0.01,0.02), --sequential, --ladders, --tune (0
// or 1), --ladder-percent, --tune-steps, --tune-sequences and --tune-work-percent.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/clock.h"
#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/calibrate.h"
#include "server/engine/analysis/corpus_splits.h"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse {
namespace {

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

std::string Text(const Flags& flags, const std::string& name) {
  const auto found = flags.find(name);
  return found == flags.end() ? "" : found->second;
}

absl::StatusOr<std::vector<int32_t>> ReadTokens(const Flags& flags, const std::string& model, std::string& sha256) {
  const bool text = flags.contains("--text");
  GH_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(Text(flags, text ? "--text" : "--tokens")));
  sha256 = Sha256Hex(bytes);
  if (text) {
    GH_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(model + "/tokenizer.json"));
    return tokenizer->Encode(bytes);
  }
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(int32_t));
  return tokens;
}

absl::StatusOr<CalibrateOptions> ReadOptions(const Flags& flags) {
  CalibrateOptions options;
  options.name = Text(flags, "--name");
  options.corpus = Text(flags, "--corpus");
  GH_ASSIGN_OR_RETURN(options.fit_tokens, Number(flags, "--fit-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.gate_tokens, Number(flags, "--gate-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.select_tokens, Number(flags, "--select-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.report_tokens, Number(flags, "--report-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.window_tokens, Number(flags, "--window-tokens", 0));
  GH_ASSIGN_OR_RETURN(options.sink_positions, Number(flags, "--sink-positions", options.sink_positions));
  GH_ASSIGN_OR_RETURN(options.seed, Number(flags, "--seed", 0));
  BudgetOptions& budget = options.budget;
  for (const auto& text : absl::StrSplit(Text(flags, "--budgets"), ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtod(text, &budget.budgets.emplace_back())) {
      return absl::InvalidArgumentError("--budgets is no list of numbers");
    }
  }
  GH_ASSIGN_OR_RETURN(budget.sequential, Number(flags, "--sequential", budget.sequential));
  GH_ASSIGN_OR_RETURN(budget.ladders, Number(flags, "--ladders", budget.ladders));
  GH_ASSIGN_OR_RETURN(budget.tune, Number(flags, "--tune", budget.tune));
  GH_ASSIGN_OR_RETURN(const int64_t ladder_percent, Number(flags, "--ladder-percent", 25));
  budget.ladder_share = static_cast<double>(ladder_percent) / 100;
  GH_ASSIGN_OR_RETURN(budget.tune_steps, Number(flags, "--tune-steps", budget.tune_steps));
  GH_ASSIGN_OR_RETURN(budget.tune_sequences, Number(flags, "--tune-sequences", budget.tune_sequences));
  GH_ASSIGN_OR_RETURN(const int64_t work_percent, Number(flags, "--tune-work-percent", 30));
  budget.tune_work_saved = static_cast<double>(work_percent) / 100;
  return options;
}

std::string List(const std::vector<int64_t>& values) { return StrCat("[", absl::StrJoin(values, ", "), "]"); }

absl::Status WriteSplits(const Flags& flags, const CalibrateOptions& options, int64_t tokens,
                         const ModelConfig& model) {
  if (!flags.contains("--splits")) return absl::OkStatus();
  GH_ASSIGN_OR_RETURN(const CorpusSplits splits, PlanSplits(options, tokens, model));
  return WriteFileAtomically(
      Text(flags, "--splits"),
      StrCat("{\"window\": ", splits.window, ", \"fit\": ", List(splits.fit), ", \"gate\": ", List(splits.gate),
             ", \"select\": ", List(splits.select), ", \"report\": ", List(splits.report), "}\n"));
}

void PrintNeurons(const char* kind, const std::vector<NeuronFinding>& findings, double null, double random) {
  std::printf("    %-9s null %.2f random %g:", kind, null, random);
  for (const NeuronFinding& finding : findings) {
    std::printf(" %d (%.2f, %+.2f)", finding.neuron, finding.base_rate, finding.rate_difference);
  }
  std::printf("\n");
}

void Print(const CalibrationInfo& info) {
  for (size_t i = 0; i < info.layers.size(); ++i) {
    const LayerCalibration& layer = info.layers[i];
    std::printf(
        "layer %zu: R2 %.4f (with sinks %.4f), cost %+.3f%% (with sinks %+.3f%%)%s, gate %.1f%% linear at %+.3f%%\n", i,
        layer.surrogate_r2, layer.surrogate_r2_with_sinks, 100 * layer.linear_cost, 100 * layer.linear_cost_with_sinks,
        layer.gateable ? ", gateable" : "", 100 * layer.gate_linear_fraction, 100 * layer.gate_cost);
    std::printf("    score p25 %.4f p50 %.4f p70 %.4f p95 %.4f\n", layer.p25, layer.p50, layer.p70, layer.p95);
    PrintNeurons("consensus", layer.consensus, layer.consensus_null, layer.consensus_random);
    PrintNeurons("exception", layer.exception, layer.exception_null, layer.exception_random);
    PrintNeurons("gateway", layer.gateway, layer.gateway_null, layer.gateway_random);
  }
}

void PrintPoints(const CalibrationInfo& info) {
  for (const OperatingPoint& point : info.operating_points) {
    std::printf(
        "operating point %s: %.1f%% of the MLP work saved at %+.3f%% (%+.3f to %+.3f), %.1f%% linear, %.1f%% ladder\n",
        point.name.c_str(), 100 * point.work_saved, 100 * point.cost, 100 * point.cost_low, 100 * point.cost_high,
        100 * point.linear_fraction, 100 * point.ladder_fraction);
  }
}

absl::Status Run(const std::string& directory, const std::string& output, const Flags& flags) {
  GH_ASSIGN_OR_RETURN(CalibrateOptions options, ReadOptions(flags));
  GH_ASSIGN_OR_RETURN(const ModelWeights model, LoadModelWeights(directory, at::kFloat, at::kCPU));
  GH_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokens(flags, directory, options.corpus_sha256));
  GH_RETURN_IF_ERROR(WriteSplits(flags, options, static_cast<int64_t>(tokens.size()), model.config));
  const double start = MonotonicSeconds();
  const std::atomic<bool> cancelled{false};
  const ProgressFn progress = [](double fraction, std::string_view stage) {
    std::fprintf(stderr, "\r%5.1f%% %-40.*s", 100 * fraction, static_cast<int>(stage.size()), stage.data());
  };
  GH_ASSIGN_OR_RETURN(const CalibrationData data, Calibrate(model, options, tokens, progress, cancelled));
  std::fprintf(stderr, "\n");
  GH_RETURN_IF_ERROR(WriteCalibrationFile(output, data));
  Print(data.info);
  PrintPoints(data.info);
  std::printf("%zu tokens of corpus sha256:%s; fit %lld, gate %lld, select %lld, report %lld; %.1f s\n", tokens.size(),
              options.corpus_sha256.c_str(), static_cast<long long>(data.info.fit_tokens),
              static_cast<long long>(data.info.gate_tokens), static_cast<long long>(data.info.select_tokens),
              static_cast<long long>(data.info.report_tokens), MonotonicSeconds() - start);
  return absl::OkStatus();
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  gatehouse::Flags flags;
  for (int i = 3; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  if (argc < 5 || argc % 2 == 0 || flags.contains("--text") == flags.contains("--tokens")) {
    std::fprintf(stderr,
                 "usage: calibrate_probe MODEL_DIRECTORY OUTPUT (--text FILE | --tokens FILE) [--NAME VALUE]...\n");
    return 2;
  }
  const absl::Status status = gatehouse::Run(argv[1], argv[2], flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
