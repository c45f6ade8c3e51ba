#include "server/engine/training/plain_forward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "server/engine/model/weights.h"
#include "tests/engine/model/model_directory.h"

namespace gatehouse::testing {
namespace {

at::Tensor FloatTensor(const nlohmann::json& numbers) {
  return at::tensor(numbers.get<std::vector<double>>()).to(at::kFloat);
}

at::Tensor IdTensor(const nlohmann::json& ids) { return at::tensor(ids.get<std::vector<int64_t>>()).unsqueeze(0); }

// Log-probabilities [tokens, vocab] of one sequence.
at::Tensor LogProbs(const ModelWeights& model, const at::Tensor& ids) {
  return PlainForward(model, ids)[0].log_softmax(-1);
}

at::Tensor NextToken(const at::Tensor& log_probs, const at::Tensor& ids) {
  const int64_t predictions = ids.size(1) - 1;
  return log_probs.narrow(0, 0, predictions).gather(-1, ids.narrow(1, 1, predictions).view({-1, 1})).squeeze(-1);
}

std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(RepositoryPath("tests/data/models"))) {
    if (std::filesystem::exists(entry.path() / "expected.json")) names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(PlainForward, EqualsTransformersOnEveryTinyModel) {
  const std::vector<std::string> fixtures = Fixtures();
  EXPECT_GE(fixtures.size(), 15u);
  for (const std::string& name : fixtures) {
    SCOPED_TRACE(name);
    const ModelWeights model = LoadModel(FixturePath(name));
    for (const nlohmann::json& sequence : ReadJson(FixturePath(name) + "/expected.json")["sequences"]) {
      const at::Tensor ids = IdTensor(sequence["ids"]);
      const at::Tensor log_probs = LogProbs(model, ids);
      EXPECT_LT(MaxDifference(NextToken(log_probs, ids), FloatTensor(sequence["logprobs"])), 1e-4);
      for (size_t i = 0; i < sequence["positions"].size(); ++i) {
        const int64_t position = sequence["positions"][i];
        EXPECT_LT(MaxDifference(log_probs[position], FloatTensor(sequence["all"][i])), 1e-4) << position;
      }
    }
  }
}

TEST(PlainForward, EqualsTransformersOnTheEmbeddedModels) {
  for (const char* name : {"models/novella-gpt2-7m", "models/novella-neox-4m"}) {
    SCOPED_TRACE(name);
    const std::string directory = RepositoryPath(name);
    const ModelWeights model = LoadModel(directory);
    const nlohmann::json expected = ReadJson(directory + "/expected.json");
    const at::Tensor ids = IdTensor(expected["ids"]);
    EXPECT_LT(MaxDifference(NextToken(LogProbs(model, ids), ids), FloatTensor(expected["logprobs"])), 1e-4);
  }
}

TEST(PlainForward, ContinuesGreedilyAsTransformersDoes) {
  for (const char* name : {"models/novella-gpt2-7m", "models/novella-neox-4m"}) {
    SCOPED_TRACE(name);
    const std::string directory = RepositoryPath(name);
    const ModelWeights model = LoadModel(directory);
    const nlohmann::json expected = ReadJson(directory + "/expected.json");
    at::Tensor ids = IdTensor(expected["ids"]);
    for (size_t i = 0; i < 10; ++i) {
      const int64_t next = expected["greedy_32"][i];
      ASSERT_EQ(PlainForward(model, ids)[0][-1].argmax().item<int64_t>(), next);
      ids = at::cat({ids, at::full({1, 1}, next, at::kLong)}, 1);
    }
  }
}

TEST(PlainForward, ReproducesThePublishedLogitsOfATinyGpt2) {
  const std::string directory = RepositoryPath("../shared/data/fixtures/tiny-random-gpt2-onnx");
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << "no " << directory;
  const ModelWeights model = LoadModel(directory);
  const nlohmann::json expected = ReadJson(directory + "/expected.json");
  for (size_t row = 0; row < expected["input_ids"].size(); ++row) {
    at::Tensor ids = IdTensor(expected["input_ids"][row]);
    const at::Tensor logits = PlainForward(model, ids)[0];
    for (int64_t position = 0; position < ids.size(1); ++position) {
      const at::Tensor published = FloatTensor(expected["prompt_logits_every_200th"][row][position]);
      EXPECT_LT(MaxDifference(logits[position].slice(0, 0, 1000, 200), published), 1e-5);
    }
    const std::vector<int64_t> greedy = expected["greedy_max_length_10"][row];
    for (size_t i = static_cast<size_t>(ids.size(1)); i < greedy.size(); ++i) {
      ASSERT_EQ(PlainForward(model, ids)[0][-1].argmax().item<int64_t>(), greedy[i]);
      ids = at::cat({ids, at::full({1, 1}, greedy[i], at::kLong)}, 1);
    }
  }
}

TEST(PlainForward, StaysNearInBfloat16) {
  for (const char* name : {"models/novella-gpt2-7m", "models/novella-neox-4m"}) {
    SCOPED_TRACE(name);
    const std::string directory = RepositoryPath(name);
    const ModelWeights model = LoadModel(directory, at::kBFloat16);
    const nlohmann::json expected = ReadJson(directory + "/expected.json");
    const at::Tensor ids = IdTensor(expected["ids"]);
    const at::Tensor difference = NextToken(LogProbs(model, ids), ids) - FloatTensor(expected["logprobs"]);
    EXPECT_LT(difference.abs().mean().item<double>(), 0.02);
    EXPECT_GT(difference.abs().mean().item<double>(), 0);
  }
}

// [batch, tokens] of a tiny model's vocabulary.
at::Tensor SomeIds(int64_t batch, int64_t tokens) {
  return at::arange(batch * tokens, at::kLong).mul(29).remainder(127).view({batch, tokens});
}

ModelWeights LoadFixture(const std::string& name) { return LoadModel(FixturePath(name)); }

TEST(PlainForward, GivesEachSequenceOfABatchItsOwnResult) {
  for (const char* name : {"gpt2", "neox", "llama"}) {
    const ModelWeights model = LoadFixture(name);
    const at::Tensor ids = SomeIds(3, 20);
    const at::Tensor together = PlainForward(model, ids);
    for (int row : {0, 1, 2}) {
      EXPECT_LT(MaxDifference(together[row], PlainForward(model, ids.narrow(0, row, 1))[0]), 1e-5) << name;
    }
    // A token's logits do not depend on later ones.
    EXPECT_LT(MaxDifference(together.narrow(1, 0, 7), PlainForward(model, ids.narrow(1, 0, 7))), 1e-5) << name;
  }
}

TEST(PlainForward, RunsLayersInStretches) {
  const ModelWeights model = LoadFixture("gpt2-scaled-by-layer");
  const at::Tensor ids = SomeIds(1, 20);
  at::Tensor residual = PlainLayers(model, PlainEmbed(model, ids), 0, 1);
  residual = PlainLayers(model, residual, 1, 3);
  EXPECT_EQ(MaxDifference(PlainLogits(model, residual), PlainForward(model, ids)), 0);
}

TEST(PlainForward, ShowsAndReplacesWhatEachMlpReadsAndWrites) {
  for (const char* name : {"gpt2", "neox", "neox-sequential", "llama"}) {
    SCOPED_TRACE(name);
    const ModelWeights model = LoadFixture(name);
    const at::Tensor ids = SomeIds(2, 9);
    std::vector<int> seen;
    const at::Tensor observed = PlainForward(model, ids, [&](int layer, const at::Tensor& x) {
      seen.push_back(layer);
      EXPECT_EQ(x.sizes(), at::IntArrayRef({2, 9, model.config.d_model}));
      at::Tensor activations;
      const at::Tensor y = PlainMlp(model, layer, x, &activations);
      EXPECT_EQ(activations.sizes(), at::IntArrayRef({2, 9, model.config.d_mlp}));
      const LinearWeights& out = model.layers[layer].mlp_out;
      at::Tensor product = activations;
      if (model.config.gated_mlp) {
        const at::Tensor up = model.layers[layer].mlp_in.weight.narrow(0, model.config.d_mlp, model.config.d_mlp);
        product = activations * at::matmul(x, up.t());
      }
      at::Tensor again = at::matmul(product, out.weight.t());
      if (out.bias.defined()) again = again + out.bias;
      EXPECT_LT(MaxDifference(again, y), 1e-4);
      return y;
    });
    EXPECT_EQ(seen, (std::vector<int>{0, 1}));
    EXPECT_EQ(MaxDifference(observed, PlainForward(model, ids)), 0);
    const MlpFn nothing = [](int, const at::Tensor& x) { return at::zeros_like(x); };
    EXPECT_GT(MaxDifference(PlainForward(model, ids, nothing), observed), 0.1);
  }
}

TEST(PlainForward, ComputesCrossEntropyInSlices) {
  const ModelWeights model = LoadFixture("neox");
  const at::Tensor ids = SomeIds(8, 60);  // 472 predictions
  const at::Tensor residual = PlainLayers(model, PlainEmbed(model, ids), 0, model.config.layers);
  const at::Tensor log_probs = PlainForward(model, ids).log_softmax(-1).narrow(1, 0, 59);
  const at::Tensor expected = -log_probs.gather(-1, ids.narrow(1, 1, 59).unsqueeze(-1)).squeeze(-1);
  EXPECT_LT(MaxDifference(PlainCrossEntropy(model, residual, ids), expected), 1e-5);
  EXPECT_EQ(PlainCrossEntropy(model, residual.narrow(1, 0, 1), ids.narrow(1, 0, 1)).sizes(), at::IntArrayRef({8, 0}));
}

// A surrogate passed through MlpFn gets the gradient that finite differences show.
TEST(PlainForward, LetsGradientsReachASurrogate) {
  for (const char* name : {"gpt2", "neox", "neox-sequential", "llama"}) {
    SCOPED_TRACE(name);
    const ModelWeights model = LoadFixture(name);
    const int64_t d = model.config.d_model;
    const at::Tensor ids = SomeIds(2, 12);
    at::Tensor weight = at::arange(d * d, at::kFloat).mul(0.7).sin().mul(0.1).view({d, d});
    const auto loss = [&] {
      const MlpFn mlp = [&](int layer, const at::Tensor& x) {
        return layer == 0 ? at::matmul(x, weight) : PlainMlp(model, layer, x);
      };
      return PlainCrossEntropy(model, PlainLayers(model, PlainEmbed(model, ids), 0, 2, mlp), ids).mean();
    };
    weight.set_requires_grad(true);
    loss().backward();
    const at::Tensor gradient = weight.grad().clone();
    weight = weight.detach();
    const at::Tensor direction = gradient / gradient.norm();
    const at::Tensor start = weight;
    constexpr double kStep = 1e-2;
    weight = start + kStep * direction;
    const double up = loss().item<double>();
    weight = start - kStep * direction;
    const double down = loss().item<double>();
    const double expected = gradient.norm().item<double>();
    EXPECT_GT(expected, 1e-3);
    EXPECT_NEAR((up - down) / (2 * kStep), expected, 0.03 * expected);
  }
}

TEST(PlainForward, LetsGradientsReachTheWeights) {
  ModelWeights model = LoadFixture("llama");
  at::Tensor& weight = model.layers[0].qkv.weight;
  weight.set_requires_grad(true);
  PlainForward(model, SomeIds(1, 12)).log_softmax(-1).select(-1, 3).mean().backward();
  EXPECT_GT(weight.grad().abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace gatehouse::testing
