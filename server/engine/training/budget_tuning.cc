#include "server/engine/training/budget_tuning.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/item.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>
#include <random>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/shuffle.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {
namespace {

constexpr int kWarmUpSteps = 5;
// λ at first, and how fast it follows the work that is missing.
constexpr double kFirstWorkWeight = 0.3;
constexpr double kWorkWeightRate = 0.2;
// How far logits are lowered in turn, in nats.
constexpr double kShifts[] = {0, 0.67, 1.33, 2};

// 1 where z > 0, else 0; its gradient is sigmoid's.
at::Tensor StraightThrough(const at::Tensor& z) {
  const at::Tensor soft = at::sigmoid(z);
  return (z > 0).to(at::kFloat) - soft.detach() + soft;
}

// The MLPs with all paths computed and decisions that gradients pass through.
class TunedMlps {
 public:
  TunedMlps(const ModelWeights& model, const std::vector<CheapPaths>& paths, int sinks, double shift)
      : model_(model), paths_(paths), sinks_(sinks), shift_(shift), shape_(WorkShape(model.config)) {}

  // x: [1, tokens, d_model].
  at::Tensor Write(int layer, const at::Tensor& x) {
    const CheapPaths& paths = paths_[layer];
    const at::Tensor neurons = PlainNeurons(model_, layer, x);
    const at::Tensor full = PlainDown(model_, layer, neurons);
    const at::Tensor logits = GateLogits(paths, x) - shift_;
    at::Tensor routed = at::ones_like(logits);
    routed.narrow(1, 0, std::min<int64_t>(sinks_, x.size(1))).fill_(0);
    const at::Tensor linear = StraightThrough(logits) * routed;
    at::Tensor written = full + linear.unsqueeze(-1) * (SurrogateWrites(paths, x) - full);
    const double full_work = static_cast<double>(FullMlpWork(shape_));
    at::Tensor saved = linear * (1 - static_cast<double>(LinearMlpWork(shape_)) / full_work);
    if (paths.ladder_neurons.defined()) {
      const at::Tensor either = at::maximum(StraightThrough(logits + paths.ladder_gap) * routed, linear);
      const at::Tensor ladder = either - linear;
      written = written + ladder.unsqueeze(-1) * (LadderWrites(model_, layer, paths, x, neurons) - full);
      const int kept = static_cast<int>(paths.ladder_neurons.numel());
      saved = saved + ladder * (1 - static_cast<double>(LadderMlpWork(shape_, kept)) / full_work);
    }
    saved = saved.mean() / model_.config.layers;
    saved_ = saved_.defined() ? saved_ + saved : saved;
    return written;
  }

  // Share of the MLP work that the decisions saved: a scalar.
  const at::Tensor& saved() const { return saved_; }

 private:
  const ModelWeights& model_;
  const std::vector<CheapPaths>& paths_;
  const int sinks_;
  const double shift_;
  const ModelInfo shape_;
  at::Tensor saved_;
};

// Mean KL(full ‖ gated) over rows [rows, d_model] of two final residual streams; the gradient
// for `gated` is left in `gradient`, the same shape.
double Divergence(const ModelWeights& model, const at::Tensor& full, const at::Tensor& gated, at::Tensor& gradient) {
  gradient = at::empty_like(gated);
  double sum = 0;
  const int64_t rows = gated.size(0);
  for (int64_t first = 0; first < rows; first += kPlainLogitRows) {
    const int64_t count = std::min(kPlainLogitRows, rows - first);
    at::Tensor wanted;
    {
      const c10::NoGradGuard no_grad;
      wanted = PlainLogits(model, full.narrow(0, first, count)).log_softmax(-1);
    }
    const at::Tensor part = gated.narrow(0, first, count).detach().requires_grad_(true);
    const at::Tensor got = PlainLogits(model, part).log_softmax(-1);
    const at::Tensor divergence = (wanted.exp() * (wanted - got)).sum() / static_cast<double>(rows);
    divergence.backward();
    sum += divergence.item<double>();
    gradient.narrow(0, first, count).copy_(part.grad());
  }
  return sum;
}

// What learns, by Adam with steps relative to each tensor's own size, so that one rate fits
// models of any scale.
class Learners {
 public:
  // Makes leaves of the tensors of `paths`.
  Learners(std::vector<CheapPaths>& paths, const TuningOptions& options) {
    for (CheapPaths& of : paths) {
      for (at::Tensor* tensor : {&of.surrogate_weight, &of.surrogate_bias, &of.ladder_weight, &of.ladder_bias}) {
        Add(*tensor, options.learning_rate * Size(*tensor));
      }
      Add(of.gate_weight, options.gate_learning_rate * Size(of.gate_weight));
      // Logits are in nats already.
      Add(of.gate_bias, options.gate_learning_rate);
      Add(of.ladder_gap, options.gate_learning_rate);
      // May come from inference mode, which the way back refuses.
      if (of.ladder_neurons.defined()) of.ladder_neurons = of.ladder_neurons.clone();
    }
  }

  void ClearGradients() {
    for (Learner& of : learners_) of.value.mutable_grad() = at::Tensor();
  }

  void Step(double factor) {
    const c10::NoGradGuard no_grad;
    ++steps_;
    const double correction1 = 1 - std::pow(kBeta1, steps_), correction2 = 1 - std::pow(kBeta2, steps_);
    for (Learner& of : learners_) {
      const at::Tensor& gradient = of.value.grad();
      if (!gradient.defined()) continue;
      of.first.lerp_(gradient, 1 - kBeta1);
      of.second.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
      const at::Tensor scale = (of.second / correction2).sqrt_().add_(kEpsilon);
      of.value.addcdiv_(of.first, scale, -factor * of.rate / correction1);
    }
  }

 private:
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.98, kEpsilon = 1e-8;

  struct Learner {
    at::Tensor value;
    double rate = 0;
    at::Tensor first, second;  // moments
  };

  static double Size(const at::Tensor& tensor) {
    return tensor.defined() ? std::max(1e-3, tensor.square().mean().sqrt().item<double>()) : 0;
  }

  void Add(at::Tensor& tensor, double rate) {
    if (!tensor.defined()) return;
    tensor = tensor.detach().clone().requires_grad_(true);
    const at::Tensor zeros = at::zeros_like(tensor.detach());
    learners_.push_back({tensor, rate, zeros.clone(), zeros.clone()});
  }

  std::vector<Learner> learners_;
  int steps_ = 0;
};

// Blocks in an order drawn anew each time all have been seen.
class BlockOrder {
 public:
  BlockOrder(int64_t blocks, uint64_t seed) : order_(blocks), random_(seed) {
    std::iota(order_.begin(), order_.end(), 0);
    next_ = order_.size();
  }
  int64_t Next() {
    if (next_ == order_.size()) {
      Shuffle(order_, random_);
      next_ = 0;
    }
    return order_[next_++];
  }

 private:
  std::vector<int64_t> order_;
  std::mt19937_64 random_;
  size_t next_;
};

// Rises over the first steps, then falls to a twentieth along a cosine.
double RateFactor(int step, int steps) {
  const double rise = std::min(1.0, (step + 1.0) / kWarmUpSteps);
  return rise * (0.05 + 0.95 * 0.5 * (1 + std::cos(std::numbers::pi * step / steps)));
}

}  // namespace

GatedLoss AccumulateGatedLoss(const ModelWeights& model, const std::vector<CheapPaths>& paths, const at::Tensor& ids,
                              const at::Tensor& full, const GatedLossOptions& options) {
  TunedMlps mlps(model, paths, options.sinks, options.shift);
  const at::Tensor last = PlainLayers(model, PlainEmbed(model, ids), 0, model.config.layers,
                                      [&](int layer, const at::Tensor& x) { return mlps.Write(layer, x); });
  const int64_t first = std::min<int64_t>(options.sinks, ids.size(1) - 1);
  const auto judged = [&](const at::Tensor& residual) {
    return residual.narrow(1, first, residual.size(1) - first).flatten(0, 1);
  };
  const at::Tensor gated = judged(last);
  at::Tensor gradient;
  GatedLoss loss;
  loss.divergence = Divergence(model, judged(full), gated.detach(), gradient);
  loss.work_saved = mlps.saved().item<double>();
  (((gated * gradient).sum() - options.work_weight * mlps.saved()) * options.scale).backward();
  return loss;
}

absl::StatusOr<std::vector<TuningStep>> TuneGating(const ModelWeights& model, const at::Tensor& ids,
                                                   const TuningOptions& options, std::vector<CheapPaths>& paths,
                                                   Work& work) {
  Learners learners(paths, options);
  BlockOrder order(ids.size(0), options.seed);
  std::vector<at::Tensor> full(ids.size(0));  // filled in as blocks are met
  std::vector<TuningStep> steps;
  double work_weight = kFirstWorkWeight;
  size_t turn = 0;
  for (int step = 0; step < options.steps; ++step) {
    work.SetStage(StrCat("whole-model gating: tuning, step ", step + 1, " of ", options.steps));
    TuningStep mean;
    int at_zero = 0;
    learners.ClearGradients();
    for (int i = 0; i < options.sequences; ++i) {
      // Forward through the full model, forward and back through all paths.
      GH_RETURN_IF_ERROR(work.Step(4.0 * static_cast<double>(ids.size(1)) * model.config.layers));
      const int64_t block = order.Next();
      const at::Tensor sequence = ids.narrow(0, block, 1);
      if (!full[block].defined()) {
        const c10::NoGradGuard no_grad;
        full[block] = PlainLayers(model, PlainEmbed(model, sequence), 0, model.config.layers);
      }
      const double shift = kShifts[turn++ % std::size(kShifts)];
      const GatedLoss loss = AccumulateGatedLoss(model, paths, sequence, full[block],
                                                 {.sinks = options.sinks,
                                                  .shift = shift,
                                                  .work_weight = work_weight * std::exp(-shift),
                                                  .scale = 1.0 / options.sequences});
      mean.divergence += loss.divergence / options.sequences;
      if (shift == 0) {
        mean.work_saved += loss.work_saved;
        ++at_zero;
      }
    }
    if (!std::isfinite(mean.divergence)) return absl::InternalError("tuning diverged");
    learners.Step(RateFactor(step, options.steps));
    if (at_zero > 0) {
      mean.work_saved /= at_zero;
      work_weight = std::max(0.0, work_weight + kWorkWeightRate * (options.work_saved - mean.work_saved));
    }
    steps.push_back(mean);
  }
  for (CheapPaths& of : paths) {
    for (at::Tensor* tensor : of.Tensors()) *tensor = tensor->detach();
  }
  return steps;
}

}  // namespace gatehouse
