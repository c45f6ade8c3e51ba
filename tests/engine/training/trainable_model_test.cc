#include "server/engine/training/trainable_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/model/model_directory.h"

namespace gatehouse::testing {
namespace {

using Decision = TrainableModel::Decision;

constexpr int kSinks = 3;

at::Tensor SomeIds(int64_t batch, int64_t tokens) {
  return at::arange(batch * tokens, at::kLong).mul(29).remainder(127).view({batch, tokens});
}

Surrogate SomeSurrogate(int64_t d) {
  return {at::arange(d * d, at::kFloat).mul(0.7).sin().mul(0.1).view({d, d}), at::arange(d, at::kFloat).cos(), {}};
}

ModelWeights LoadFixture(const std::string& name) { return LoadModel(FixturePath(name)); }

TEST(TrainableModel, IsACopyThatComputesTheSame) {
  for (const char* name : {"gpt2", "gpt2-untied-relu", "neox", "neox-no-bias-tied", "llama", "llama-tied-wide-heads"}) {
    SCOPED_TRACE(name);
    const ModelWeights model = LoadFixture(name);
    const TrainableModel copy(model, kSinks);
    const at::Tensor ids = SomeIds(2, 20);
    EXPECT_TRUE(at::equal(PlainForward(copy.weights(), ids), PlainForward(model, ids)));
    EXPECT_NE(copy.weights().layers[0].mlp_in.weight.const_data_ptr(), model.layers[0].mlp_in.weight.const_data_ptr());
    EXPECT_FALSE(model.token_embedding.requires_grad());
    int64_t parameters = 0;
    for (const Parameter& parameter : copy.parameters()) parameters += parameter.value.numel();
    EXPECT_EQ(parameters, model.parameters);
    EXPECT_EQ(copy.weights().output.weight.is_same(copy.weights().token_embedding), model.config.tied_output);
  }
}

TEST(TrainableModel, LearnsInFloat32WhateverServes) {
  const ModelWeights model = LoadModel(FixturePath("gpt2"), at::kBFloat16);
  const TrainableModel copy(model, kSinks);
  for (const Parameter& parameter : copy.parameters()) EXPECT_EQ(parameter.value.scalar_type(), at::kFloat);
}

// Layer 0 linear, layer 1 gated softly: every parameter's gradient is what finite
// differences along it show.
TEST(TrainableModel, GivesTheGradientsOfFiniteDifferences) {
  for (const char* name : {"gpt2", "neox", "llama"}) {
    SCOPED_TRACE(name);
    const ModelWeights weights = LoadFixture(name);
    TrainableModel model(weights, kSinks);
    const Surrogate surrogate = SomeSurrogate(weights.config.d_model);
    model.Linearize(0, surrogate);
    model.AddGate(1, &surrogate, 0.3);
    const at::Tensor ids = SomeIds(2, 16);
    const auto loss = [&] {
      const TrainableModel::Result result = model.Run(ids, Decision::kSoft);
      return result.cross_entropy.mean() + 0.01 * result.full_mass;
    };
    loss().backward();
    int learning = 0;
    for (const Parameter& parameter : model.parameters()) {
      SCOPED_TRACE(parameter.name);
      const bool replaced =
          parameter.name.starts_with("layers.0.mlp_in") || parameter.name.starts_with("layers.0.mlp_out");
      ASSERT_EQ(parameter.value.requires_grad(), !replaced);
      if (replaced) continue;
      const at::Tensor gradient = parameter.value.grad();
      ASSERT_TRUE(gradient.defined());
      const double norm = gradient.norm().item<double>();
      const c10::NoGradGuard no_grad;
      const at::Tensor start = parameter.value.clone(), direction = gradient / norm;
      constexpr double kStep = 1e-2;
      parameter.value.copy_(start + kStep * direction);
      const double up = loss().item<double>();
      parameter.value.copy_(start - kStep * direction);
      const double down = loss().item<double>();
      parameter.value.copy_(start);
      EXPECT_GT(norm, 1e-3);
      EXPECT_NEAR((up - down) / (2 * kStep), norm, 0.03 * norm + 2e-4);
      ++learning;
    }
    EXPECT_GT(learning, 15);
  }
}

TEST(TrainableModel, DecidesHardWithTheGradientOfTheSoftMixture) {
  const ModelWeights weights = LoadFixture("gpt2");
  TrainableModel model(weights, kSinks);
  const Surrogate surrogate = SomeSurrogate(weights.config.d_model);
  model.AddGate(0, &surrogate, 0.5);
  const at::Tensor gate = model.layer(0).gate.weight;
  {
    const c10::NoGradGuard no_grad;
    gate.copy_(at::arange(weights.config.d_model).sin().view({1, -1}));
  }
  const at::Tensor ids = SomeIds(3, 20);
  const TrainableModel::Result hard = model.Run(ids, Decision::kHard);
  EXPECT_GT(hard.linear_tokens[0], 5);
  EXPECT_LT(hard.linear_tokens[0], 3 * (20 - kSinks) - 5);
  EXPECT_EQ(hard.linear_tokens[1], 0);
  const TrainableModel::Result straight = model.Run(ids, Decision::kStraightThrough);
  EXPECT_LT(MaxDifference(straight.cross_entropy, hard.cross_entropy), 1e-5);
  EXPECT_GT(MaxDifference(model.Run(ids, Decision::kSoft).cross_entropy, hard.cross_entropy), 1e-3);
  straight.cross_entropy.mean().backward();
  EXPECT_GT(gate.grad().abs().max().item<double>(), 1e-6);
}

TEST(TrainableModel, RunsSinksInFull) {
  const ModelWeights weights = LoadFixture("neox");
  const at::Tensor ids = SomeIds(2, 20);
  const at::Tensor full = TrainableModel(weights, kSinks).Run(ids, Decision::kHard).cross_entropy;
  const Surrogate surrogate = SomeSurrogate(weights.config.d_model);
  for (const bool gated : {false, true}) {
    TrainableModel model(weights, kSinks);
    if (gated) {
      model.AddGate(0, &surrogate, 0.9);
    } else {
      model.Linearize(0, surrogate);
    }
    const TrainableModel::Result linear = model.Run(ids, Decision::kHard);
    EXPECT_EQ(linear.linear_tokens[0], 2 * (20 - kSinks));
    EXPECT_LT(MaxDifference(linear.cross_entropy.narrow(1, 0, kSinks), full.narrow(1, 0, kSinks)), 1e-5);
    EXPECT_GT(MaxDifference(linear.cross_entropy.select(1, kSinks), full.select(1, kSinks)), 1e-3);
  }
}

TEST(TrainableModel, FreezesAllButGates) {
  const ModelWeights weights = LoadFixture("llama");
  TrainableModel model(weights, kSinks);
  model.Linearize(1, SomeSurrogate(weights.config.d_model));
  model.AddGate(1, nullptr, 0.5);
  model.FreezeAllButGates();
  EXPECT_EQ(model.gated_layers(), 1);
  for (const Parameter& parameter : model.parameters()) {
    EXPECT_EQ(parameter.value.requires_grad(), parameter.name.find(".gate.") != std::string::npos) << parameter.name;
  }
}

}  // namespace
}  // namespace gatehouse::testing
