#include "tests/bench/partition_times.h"

#include <ATen/ops/cat.h>
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
  for (int layer = 0; layer < model.config.layers; ++layer) surrogates_.push_back(Random(d, d));
}

LinearWeights PartitionTimes::Random(int64_t outputs, int64_t inputs) const {
  return {at::randn({outputs, inputs}).mul_(0.02).to(model_.token_embedding.scalar_type()), at::randn({outputs})};
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
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return known[rows] = times[kRounds / 2];
}

at::Tensor PartitionTimes::Hidden(const at::Tensor& x, const LinearWeights& in) {
  at::Tensor hidden = kernels_.Linear(x, in, RowGroup::kSkinny);
  if (model_.config.gated_mlp) return kernels_.GatedActivate(hidden, model_.config.activation, nullptr);
  kernels_.Activate(hidden, model_.config.activation);
  return hidden;
}

double PartitionTimes::Full(int rows) {
  return Measure(rows, full_, [&](int layer, const at::Tensor& x) {
    const LayerWeights& weights = model_.layers[layer];
    kernels_.Linear(Hidden(x, weights.mlp_in), weights.mlp_out, RowGroup::kSkinny);
  });
}

double PartitionTimes::Linear(int rows) {
  return Measure(rows, linear_,
                 [&](int layer, const at::Tensor& x) { kernels_.Linear(x, surrogates_[layer], RowGroup::kSkinny); });
}

double PartitionTimes::Ladder(int rows, int neurons) {
  if (neurons != ladder_neurons_) {
    const ModelConfig& config = model_.config;
    ladder_.clear();
    ladder_in_.clear();
    ladder_joint_.clear();
    ladder_neurons_ = neurons;
    for (int layer = 0; layer < config.layers; ++layer) {
      ladder_in_.push_back(Random(config.gated_mlp ? 2 * neurons : neurons, config.d_model));
      ladder_joint_.push_back(Random(config.d_model, config.d_model + neurons));
    }
  }
  return Measure(rows, ladder_, [&](int layer, const at::Tensor& x) {
    kernels_.Linear(at::cat({x, Hidden(x, ladder_in_[layer])}, 1), ladder_joint_[layer], RowGroup::kSkinny);
  });
}

}  // namespace gatehouse
