#include "tests/bench/partition_times.h"

#include <ATen/ops/randn.h>

#include <algorithm>
#include <chrono>

namespace gatehouse {
namespace {

constexpr int kRounds = 7;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

PartitionTimes::PartitionTimes(const ModelWeights& model, Kernels& kernels) : model_(model), kernels_(kernels) {
  const int64_t d = model.config.d_model;
  for (int layer = 0; layer < model.config.layers; ++layer) {
    surrogates_.push_back({at::randn({d, d}).mul_(0.02).to(model.token_embedding.scalar_type()), at::randn({d})});
  }
}

template <typename Run>
double PartitionTimes::Measure(int rows, std::map<int, double>& known, Run run) {
  if (rows == 0) return 0;
  const auto found = known.find(rows);
  if (found != known.end()) return found->second;
  const at::Tensor x = at::randn({rows, model_.config.d_model});
  std::vector<double> times;
  for (int round = 0; round <= kRounds; ++round) {
    const double start = Seconds();
    for (int layer = 0; layer < model_.config.layers; ++layer) run(layer, x);
    if (round > 0) times.push_back((Seconds() - start) / model_.config.layers);  // the first warms up
  }
  return known[rows] = *std::min_element(times.begin(), times.end());
}

double PartitionTimes::Full(int rows) {
  return Measure(rows, full_, [&](int layer, const at::Tensor& x) {
    const LayerWeights& weights = model_.layers[layer];
    at::Tensor hidden = kernels_.Linear(x, weights.mlp_in, RowGroup::kSkinny);
    if (model_.config.gated_mlp) {
      hidden = kernels_.GatedActivate(hidden, model_.config.activation, nullptr);
    } else {
      kernels_.Activate(hidden, model_.config.activation);
    }
    kernels_.Linear(hidden, weights.mlp_out, RowGroup::kSkinny);
  });
}

double PartitionTimes::Linear(int rows) {
  return Measure(rows, linear_,
                 [&](int layer, const at::Tensor& x) { kernels_.Linear(x, surrogates_[layer], RowGroup::kSkinny); });
}

}  // namespace gatehouse
