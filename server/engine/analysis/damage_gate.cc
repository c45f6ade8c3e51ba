#include "server/engine/analysis/damage_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/base/status_macros.h"
#include "server/engine/mlp_work.h"
#include "server/engine/training/plain_forward.h"
#include "server/engine/training/sensitivity.h"

namespace gatehouse {
namespace {

constexpr double kLeastDamage = 1e-12;  // nats; of an exact surrogate
// Of the regression: the weight of the prior (w = 0) against the inputs' mean variance, steps
// and their length, and how far above its prediction a token counts.
constexpr double kPrior = 1e-2;
constexpr int kScoringSteps = 20;
constexpr double kDamping = 0.5;
constexpr double kMostExcess = 20;
constexpr double kMostShare = 1 - 1e-3;
// The range of shifts that is searched for a price, and how often it is halved.
constexpr double kMostShift = 50;
constexpr int kLevelHalvings = 40;

// What is known of one layer's damages.
struct LayerDamage {
  std::vector<at::Tensor> linear;  // of each token that is no sink, nats, float64; block by block
  double ladder = 0;               // Σ
};

// The mean of a positive quantity as exp(w · x + c): a generalized linear model with
// exponential noise, by Fisher scoring.  (A regression of the logarithm would follow what
// small damages have in common; it is the large ones that cost.)
struct LogLinear {
  at::Tensor weight;  // [d], float64
  double constant = 0;
};

// x: [n, d] float64; y: [n] float64, not negative, not all zero.
absl::StatusOr<LogLinear> FitLogLinear(const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor centre = x.mean(0), design = x - centre;
  const auto n = static_cast<double>(x.size(0));
  const at::Tensor information = at::mm(design.t(), design) / n;
  const at::Tensor prior = at::eye(x.size(1), x.options()) * (kPrior * information.diagonal().mean());
  const auto [factor, info] = at::linalg_cholesky_ex(information + prior);
  if (info.item<int>() != 0) return absl::FailedPreconditionError("a gate's inputs are not finite or do not vary");
  const double mean = y.mean().item<double>();
  at::Tensor w = at::zeros({x.size(1)}, x.options());
  for (int step = 0; step < kScoringSteps; ++step) {
    const at::Tensor predicted = at::mv(design, w).exp();
    const at::Tensor scaled = predicted * (y.mean() / predicted.mean());
    const at::Tensor excess = (y / scaled).clamp_max(kMostExcess) - 1;
    const at::Tensor slope = at::mv(design.t(), excess - excess.mean()) / n - at::mv(prior, w);
    w = w + kDamping * at::cholesky_solve(slope.unsqueeze(1), factor).squeeze(1);
  }
  const double sum = at::mv(design, w).exp().mean().item<double>();
  return LogLinear{w, std::log(mean / sum) - at::dot(w, centre).item<double>()};
}

// ½ (g · δ)² of each token: [tokens] float64.
at::Tensor Damage(const at::Tensor& gradient, const at::Tensor& error) {
  return 0.5 * (gradient * error).to(at::kDouble).sum(-1).square().flatten();
}

class DamageGates {
 public:
  DamageGates(const ModelWeights& model, int sinks, std::vector<CheapPaths>& paths)
      : model_(model), sinks_(sinks), paths_(paths), shape_(WorkShape(model.config)) {
    damages_.resize(paths.size());
  }

  // x, gradient: [1, window, d_model].
  void Add(int layer, const at::Tensor& x_block, const at::Tensor& gradient_block) {
    const at::Tensor x = NoSinks(x_block), gradient = NoSinks(gradient_block);
    const CheapPaths& paths = paths_[layer];
    const at::Tensor neurons = PlainNeurons(model_, layer, x);
    const at::Tensor full = PlainDown(model_, layer, neurons);
    LayerDamage& damage = damages_[layer];
    damage.linear.push_back(Damage(gradient, SurrogateWrites(paths, x) - full));
    if (paths.ladder_neurons.defined()) {
      damage.ladder += Damage(gradient, LadderWrites(model_, layer, paths, x, neurons) - full).sum().item<double>();
    }
  }

  absl::Status SetGate(int layer, const SplitStream& split) {
    CheapPaths& paths = paths_[layer];
    const LayerDamage& damage = damages_[layer];
    const at::Tensor measured = at::cat(damage.linear).clamp_min(kLeastDamage);
    const at::Tensor x = NoSinks(split.x()).flatten(0, 1).to(at::kDouble);
    GH_ASSIGN_OR_RETURN(const LogLinear fit, FitLogLinear(x, measured));
    const double linear_saves = LinearSaves();
    double more_saved = linear_saves, more_damage = 1;  // going linear, against the next best
    if (paths.ladder_neurons.defined()) {
      const double ladder_saves = LadderSaves(paths);
      const double share = std::clamp(damage.ladder / measured.sum().item<double>(), 1e-6, kMostShare);  // ρ
      const double gap = std::log(ladder_saves / share) - std::log((linear_saves - ladder_saves) / (1 - share));
      paths.ladder_gap = at::full({1}, gap, paths.surrogate_bias.options());
      if (gap > 0) {
        more_saved = linear_saves - ladder_saves;
        more_damage = 1 - share;
      }
    }
    paths.gate_weight = -fit.weight.to(at::kFloat);
    paths.gate_bias = at::full({1}, std::log(more_saved / more_damage) - fit.constant, paths.surrogate_bias.options());
    logits_.push_back(GateLogits(paths, NoSinks(split.x())));
    return absl::OkStatus();
  }

  void SetPrice(double work_saved) {
    double much = -kMostShift, little = kMostShift;
    for (int i = 0; i < kLevelHalvings; ++i) {
      const double middle = std::midpoint(much, little);
      (SavedAt(middle) > work_saved ? much : little) = middle;
    }
    for (CheapPaths& paths : paths_) paths.gate_bias = paths.gate_bias - much;
  }

 private:
  double LinearSaves() const {
    return 1 - static_cast<double>(LinearMlpWork(shape_)) / static_cast<double>(FullMlpWork(shape_));
  }
  double LadderSaves(const CheapPaths& paths) const {
    const int kept = static_cast<int>(paths.ladder_neurons.numel());
    return 1 - static_cast<double>(LadderMlpWork(shape_, kept)) / static_cast<double>(FullMlpWork(shape_));
  }

  // The share of the work that the split's tokens save with all logits lowered by `shift`.
  double SavedAt(double shift) const {
    const auto share_over = [](const at::Tensor& logits, double limit) {
      return (logits > limit).to(at::kDouble).mean().item<double>();
    };
    double saved = 0;
    for (size_t layer = 0; layer < paths_.size(); ++layer) {
      const CheapPaths& paths = paths_[layer];
      const double linear = share_over(logits_[layer], shift);
      saved += linear * LinearSaves();
      if (!paths.ladder_neurons.defined()) continue;
      const double either = share_over(logits_[layer], shift - paths.ladder_gap.item<double>());
      saved += std::max(0.0, either - linear) * LadderSaves(paths);
    }
    return saved / static_cast<double>(paths_.size());
  }

  at::Tensor NoSinks(const at::Tensor& x) const { return x.narrow(1, sinks_, x.size(1) - sinks_); }

  const ModelWeights& model_;
  const int sinks_;
  std::vector<CheapPaths>& paths_;
  const ModelInfo shape_;
  std::vector<LayerDamage> damages_;
  std::vector<at::Tensor> logits_;  // of each layer, over the split's tokens that are no sinks
};

}  // namespace

absl::Status SetDamageGates(const ModelWeights& model, int sinks, double work_saved, uint64_t seed, SplitStream& split,
                            std::vector<CheapPaths>& paths, Work& work) {
  DamageGates gates(model, sinks, paths);
  {
    const c10::InferenceMode guard(false);
    const at::Tensor ids = split.ids().clone();
    GH_RETURN_IF_ERROR(
        ForSensitivities(model, ids, seed, work, [&](int layer, const at::Tensor& x, const at::Tensor& gradient) {
          const c10::InferenceMode inference;
          gates.Add(layer, x, gradient);
        }));
  }
  split.Restart();
  for (int layer = 0; layer < model.config.layers; ++layer) {
    GH_RETURN_IF_ERROR(split.Enter(layer, work));
    GH_RETURN_IF_ERROR(gates.SetGate(layer, split));
    GH_RETURN_IF_ERROR(split.Leave(work));
  }
  gates.SetPrice(work_saved);
  return absl::OkStatus();
}

}  // namespace gatehouse
