#include "server/engine/training/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/engine/model/model_directory.h"

namespace gatehouse::testing {
namespace {

at::Tensor FloatTensor(const nlohmann::json& numbers) {
  return at::tensor(numbers.get<std::vector<double>>()).to(at::kFloat);
}

TEST(AdamW, MovesParametersAsTorchDoes) {
  const nlohmann::json fixture = ReadJson(RepositoryPath("tests/data/training/adamw.json"));
  const std::vector<Parameter> parameters = {
      {"matrix", FloatTensor(fixture["start"]["matrix"]).set_requires_grad(true), ParameterKind::kMatrix},
      {"vector", FloatTensor(fixture["start"]["vector"]).set_requires_grad(true), ParameterKind::kVector}};
  AdamW optimizer({.weight_decay = fixture["weight_decay"]});
  for (const nlohmann::json& step : fixture["steps"]) {
    for (const Parameter& parameter : parameters) {
      parameter.value.mutable_grad() = FloatTensor(step["gradients"][parameter.name]);
    }
    optimizer.Step(parameters, step["learning_rate"], 0);
    for (const Parameter& parameter : parameters) {
      EXPECT_LT(MaxDifference(parameter.value, FloatTensor(step["values"][parameter.name])), 1e-6) << parameter.name;
    }
  }
}

TEST(AdamW, GivesGatesTheirOwnRateAndLeavesFrozenParametersAlone) {
  const std::vector<Parameter> parameters = {
      {"matrix", at::ones({2, 2}).set_requires_grad(true), ParameterKind::kMatrix},
      {"frozen", at::ones({2, 2}), ParameterKind::kMatrix},
      {"unused", at::ones({2, 2}).set_requires_grad(true), ParameterKind::kMatrix},
      {"gate", at::ones({1, 2}).set_requires_grad(true), ParameterKind::kGate}};
  for (const char* name : {"matrix", "gate"}) {
    for (const Parameter& parameter : parameters) {
      if (parameter.name == name) parameter.value.mutable_grad() = at::ones_like(parameter.value);
    }
  }
  AdamW optimizer({.weight_decay = 0.5});
  optimizer.Step(parameters, 0.1, 0.01);
  EXPECT_NEAR(parameters[0].value[0][0].item<double>(), 1 * (1 - 0.1 * 0.5) - 0.1, 1e-6);
  EXPECT_NEAR(parameters[3].value[0][0].item<double>(), 1 - 0.01, 1e-6);
  for (const int untouched : {1, 2}) EXPECT_TRUE(at::equal(parameters[untouched].value, at::ones({2, 2})));
  EXPECT_EQ(optimizer.moments().size(), 2u);
}

TEST(AdamW, ClipsGradientsByTheirCommonNorm) {
  const std::vector<Parameter> parameters = {{"a", at::zeros({2}).set_requires_grad(true), ParameterKind::kVector},
                                             {"b", at::zeros({2}).set_requires_grad(true), ParameterKind::kVector}};
  const auto set = [&](double a, double b) {
    parameters[0].value.mutable_grad() = at::full({2}, a);
    parameters[1].value.mutable_grad() = at::full({2}, b);
  };
  set(3, 4);
  EXPECT_NEAR(ClipGradients(parameters, 1), std::sqrt(50), 1e-5);
  EXPECT_NEAR(parameters[0].value.grad()[0].item<double>(), 3 / std::sqrt(50), 1e-5);
  EXPECT_NEAR(parameters[1].value.grad()[1].item<double>(), 4 / std::sqrt(50), 1e-5);
  set(0.3, 0.4);
  EXPECT_NEAR(ClipGradients(parameters, 1), std::sqrt(0.5), 1e-6);
  EXPECT_EQ(parameters[0].value.grad()[0].item<float>(), 0.3f);
}

}  // namespace
}  // namespace gatehouse::testing
