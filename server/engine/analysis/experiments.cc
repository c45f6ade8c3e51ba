#include "server/engine/analysis/experiments.h"

#include <utility>

#include "server/base/clock.h"
#include "server/base/status_macros.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

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
};

}  // namespace

absl::StatusOr<ExperimentResult> RunExperiment(const ModelWeights& model, const ExperimentSpec& spec,
                                               std::span<const Corpus> corpora, const std::string& directory,
                                               const ProgressFn& progress, const std::atomic<bool>& cancelled) {
  ExperimentResult result;
  GH_RETURN_IF_ERROR(AtTorchBoundary([&]() -> absl::Status {
    const ExperimentContext context{model, spec.options, corpora, directory, progress, cancelled};
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
