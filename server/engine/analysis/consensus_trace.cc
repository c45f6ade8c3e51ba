#include "server/engine/analysis/consensus_trace.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/item.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/gating/firing.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

at::Tensor IndicesOf(const std::vector<NeuronFinding>& findings, at::Device device) {
  std::vector<int64_t> neurons;
  for (const NeuronFinding& finding : findings) neurons.push_back(finding.neuron);
  return at::tensor(neurons, at::kLong).to(device);
}

double MeanOf(const at::Tensor& fires) {
  if (fires.numel() == 0) return std::numeric_limits<double>::quiet_NaN();
  return fires.to(at::kDouble).mean().item<double>();
}

}  // namespace

at::Tensor ConsensusTrace::leading_exception() const { return exception.select(2, 0) > kFiringThreshold; }

absl::StatusOr<FoundConsensus> FindLayerConsensus(const ModelWeights& model, int layer, const SplitStream& fit,
                                                  const SplitStream& find, const ConsensusSearch& search, Work& work) {
  FoundConsensus found;
  GH_ASSIGN_OR_RETURN(found.fitted, FitMlp(model, layer, fit, search.sinks, search.ridge, work));
  const SplitStream* const splits[] = {&find};
  GH_ASSIGN_OR_RETURN(MlpObservation observation, ObserveMlp(model, layer, found.fitted, splits, search.sinks, work));
  const std::vector<Regime> regimes = RegimesOf(observation.scores, PercentilesOf(observation.scores));
  found.neurons = DiscoverNeurons(observation.firing, regimes, search.max_consensus);
  if (search.shuffles > 0) {
    found.shuffled = ShuffledFindings(observation.firing, regimes, search.max_consensus, search.shuffles, search.seed);
  }
  found.kept = std::move(observation.kept.front());
  return found;
}

absl::StatusOr<ConsensusTrace> TraceConsensus(const ModelWeights& model, int layer, const FoundConsensus& found,
                                              const SplitStream& split, int sinks, Work& work) {
  const at::Device device = split.x().device();
  const std::vector<NeuronFinding>* const kinds[] = {&found.neurons.consensus, &found.neurons.exception,
                                                     &found.neurons.gateway};
  std::vector<at::Tensor> kept, norms, residuals, activations[3], indices;
  for (const auto* findings : kinds) indices.push_back(IndicesOf(*findings, device));
  GH_RETURN_IF_ERROR(split.ForBatches([&](int64_t first, int64_t count) -> absl::Status {
    GH_RETURN_IF_ERROR(work.Step(static_cast<double>(count * split.window())));
    const at::Tensor x = split.x().narrow(0, first, count);
    at::Tensor neurons;
    const at::Tensor y = PlainMlp(model, layer, x, &neurons);
    norms.push_back(RowNorms(y).to(at::kDouble));
    residuals.push_back(RowNorms(y - found.fitted.surrogate.Predict(x)).to(at::kDouble));
    kept.push_back(KeptByNorm(norms.back(), sinks, found.fitted.norm_limit));
    for (size_t i = 0; i < 3; ++i) activations[i].push_back(at::index_select(neurons, 2, indices[i]));
    return absl::OkStatus();
  }));
  ConsensusTrace trace{at::cat(kept), at::cat(activations[0]), at::cat(activations[1]), at::cat(activations[2]),
                       at::Tensor(),  at::cat(norms),          at::cat(residuals)};
  trace.level = (trace.consensus > kFiringThreshold).sum(2);
  return trace;
}

NeuronFinding RatesOf(int neuron, const at::Tensor& activations, const ConsensusTrace& trace) {
  const at::Tensor fires = (activations > kFiringThreshold).index({trace.kept});
  const at::Tensor residual = trace.residual.index({trace.kept}).cpu();
  NeuronFinding finding{neuron, MeanOf(fires), std::numeric_limits<double>::quiet_NaN()};
  if (residual.numel() == 0) return finding;
  const ScorePercentiles percentiles =
      PercentilesOf({residual.const_data_ptr<double>(), static_cast<size_t>(residual.numel())});
  const at::Tensor scores = residual.to(fires.device());
  finding.rate_difference =
      MeanOf(fires.index({scores > percentiles.p95})) - MeanOf(fires.index({scores < percentiles.p25}));
  return finding;
}

}  // namespace gatehouse
