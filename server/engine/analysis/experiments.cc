#include "server/engine/analysis/experiments.h"

#include <set>
#include <string_view>
#include <utility>

#include "server/base/clock.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

template <typename T>
absl::Status Outside(std::string_view name, const T& value, std::string_view range) {
  return absl::InvalidArgumentError(StrCat(name, " is ", value, ", outside ", range));
}

// Each in [least, most] and once.
absl::Status CheckDistinct(std::string_view name, const std::vector<int>& values, int least, int most) {
  std::set<int> seen;
  for (const int value : values) {
    if (value < least || value > most) return Outside(name, value, StrCat("[", least, ", ", most, "]"));
    if (!seen.insert(value).second) return absl::InvalidArgumentError(StrCat(name, " has ", value, " twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ExperimentOptions& options, const ModelConfig& model) {
  GH_RETURN_IF_ERROR(CheckDistinct("layers", options.layers, 0, model.layers - 1));
  if (options.sink_positions < 0 || options.sink_positions > 1024) {
    return Outside("sink_positions", options.sink_positions, "[0, 1024]");
  }
  if (!(options.ridge > 0 && options.ridge <= 1e12)) return Outside("ridge", options.ridge, "(0, 1e12]");
  if (options.bootstrap_resamples < 100 || options.bootstrap_resamples > 1'000'000) {
    return Outside("bootstrap_resamples", options.bootstrap_resamples, "[100, 1000000]");
  }
  return absl::OkStatus();
}

absl::Status CheckCorpora(std::span<const Corpus> corpora, size_t least, int vocab_size) {
  if (corpora.size() < least) {
    return absl::InvalidArgumentError(StrCat("corpora has ", corpora.size(), " entries; this needs at least ", least));
  }
  for (const Corpus& corpus : corpora) {
    for (size_t i = 0; i < corpus.tokens.size(); ++i) {
      const int32_t token = corpus.tokens[i];
      if (token >= 0 && token < vocab_size) continue;
      return absl::InvalidArgumentError(StrCat("token ", i, " of corpus '", corpus.label, "' is ", token,
                                               ", outside the vocabulary [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

// What each method asks of its own options.
struct MethodChecks {
  const ModelConfig& model;

  absl::Status operator()(const LinearizationCostMethod&) const { return absl::OkStatus(); }
  absl::Status operator()(const RoutabilityMethod&) const { return absl::OkStatus(); }
  absl::Status operator()(const GateSweepMethod& method) const {
    if (method.thresholds.empty()) return absl::InvalidArgumentError("thresholds has no entry");
    for (const double threshold : method.thresholds) {
      if (!(threshold >= 0 && threshold <= 1)) return Outside("thresholds", threshold, "[0, 1]");
    }
    return CheckDistinct("bottlenecks", method.bottlenecks, 1, model.d_model / 2);
  }
  absl::Status operator()(const NoFlyMethod& method) const {
    if (!(method.least_mean >= 0 && method.least_mean <= 1e6)) {
      return Outside("least_mean", method.least_mean, "[0, 1e6]");
    }
    if (method.least_count < 1) return Outside("least_count", method.least_count, "[1, 2147483647]");
    if (!(method.least_positive >= 0 && method.least_positive <= 1)) {
      return Outside("least_positive", method.least_positive, "[0, 1]");
    }
    if (method.least_count_other < 1) return Outside("least_count_other", method.least_count_other, "[1, 2147483647]");
    return absl::OkStatus();
  }
  absl::Status operator()(const NonlinearityMethod& method) const {
    if (method.clusters < 2 || method.clusters > 64) return Outside("clusters", method.clusters, "[2, 64]");
    return absl::OkStatus();
  }
  absl::Status operator()(const PolynomialProbeMethod& method) const {
    if (method.degrees.empty()) return absl::InvalidArgumentError("degrees has no entry");
    GH_RETURN_IF_ERROR(CheckDistinct("degrees", method.degrees, 1, 7));
    if (method.components < 1 || method.components > model.d_model) {
      return Outside("components", method.components, StrCat("[1, ", model.d_model, "]"));
    }
    if (!(method.ridge > 0 && method.ridge <= 1e12)) return Outside("ridge", method.ridge, "(0, 1e12]");
    if (!(method.high_share > 0 && method.high_share <= 1)) return Outside("high_share", method.high_share, "(0, 1]");
    return absl::OkStatus();
  }
  // The methods of consensus.
  template <typename Method>
  absl::Status operator()(const Method& method) const {
    if (method.max_consensus < 1 || method.max_consensus > 64) {
      return Outside("max_consensus", method.max_consensus, "[1, 64]");
    }
    return absl::OkStatus();
  }
  // Training checks its own.
  absl::Status operator()(const TrainingMethod&) const { return absl::OkStatus(); }
};

struct Runner {
  const ExperimentContext& context;

  absl::StatusOr<ExperimentResult> operator()(const LinearizationCostMethod&) const {
    return MeasureLinearizationCosts(context);
  }
  absl::StatusOr<ExperimentResult> operator()(const GateSweepMethod& method) const {
    return SweepGates(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const RoutabilityMethod&) const { return MeasureRoutability(context); }
  absl::StatusOr<ExperimentResult> operator()(const NoFlyMethod& method) const {
    return FindNoFlyLists(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const TrainingMethod& method) const {
    return TrainLinearized(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const NonlinearityMethod& method) const {
    return MeasureNonlinearity(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const PolynomialProbeMethod& method) const {
    return ProbePolynomials(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const ConsensusMethod& method) const {
    return FindConsensus(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const AblationMethod& method) const {
    return AblateByConsensus(context, method);
  }
  absl::StatusOr<ExperimentResult> operator()(const QuorumMethod& method) const {
    return CompareQuorumGates(context, method);
  }
};

}  // namespace

absl::StatusOr<ExperimentResult> RunExperiment(const ModelWeights& model, const ExperimentSpec& spec,
                                               std::span<const Corpus> corpora, const std::string& directory,
                                               const ProgressFn& progress, const std::atomic<bool>& cancelled) {
  GH_RETURN_IF_ERROR(CheckOptions(spec.options, model.config));
  GH_RETURN_IF_ERROR(std::visit(MethodChecks{model.config}, spec.method));
  const size_t least = std::holds_alternative<NoFlyMethod>(spec.method) ? 2 : 1;
  GH_RETURN_IF_ERROR(CheckCorpora(corpora, least, model.config.vocab_size));
  ExperimentResult result;
  GH_RETURN_IF_ERROR(AtTorchBoundary([&]() -> absl::Status {
    const ExperimentContext context{model, spec.options, corpora, directory, progress, cancelled, spec.token_text};
    GH_ASSIGN_OR_RETURN(result, std::visit(Runner{context}, spec.method));
    return absl::OkStatus();
  }));
  Report& report = result.report;
  report.kind = ExperimentKind(spec.method);
  report.model_fingerprint = model.fingerprint;
  report.dtype = model.token_embedding.scalar_type() == at::kBFloat16 ? "bfloat16" : "float32";
  report.created = Rfc3339Now();
  for (const Corpus& corpus : corpora) {
    report.corpora.push_back({corpus.label, corpus.sha256, static_cast<int64_t>(corpus.tokens.size())});
  }
  if (progress) progress(1, "done");
  return result;
}

}  // namespace gatehouse
