#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_ADAMW_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_ADAMW_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "server/engine/training/trainable_model.h"

namespace gatehouse {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // of matrices only: biases, norms and gates have none
};

// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019, algorithm 2), the arithmetic of torch.optim.AdamW.  A parameter's
// moments begin with its first gradient.  Used by one thread.
class AdamW {
 public:
  struct Moments {
    int64_t steps = 0;
    at::Tensor first, second;  // the parameter's shape, float32
  };

  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  // Moves every parameter that learns and has a gradient.
  void Step(std::span<const Parameter> parameters, double learning_rate, double gate_learning_rate);

  // By the parameter's name; what a checkpoint stores and brings back.
  const std::map<std::string, Moments>& moments() const { return moments_; }
  void set_moments(std::map<std::string, Moments> moments) { moments_ = std::move(moments); }

 private:
  AdamWOptions options_;
  std::map<std::string, Moments> moments_;
};

// Scales all gradients together so that their norm is at most `limit`; answers the norm
// they had.
double ClipGradients(std::span<const Parameter> parameters, double limit);

// Forgets all gradients.
void ClearGradients(std::span<const Parameter> parameters);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_ADAMW_H_
