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
    const absl::StatusOr<ModelWeights> model = LoadModelWeights(FixturePath(name), at::kFloat, at::kCPU);
    ASSERT_TRUE(model.ok()) << model.status();
    for (const nlohmann::json& sequence : ReadJson(FixturePath(name) + "/expected.json")["sequences"]) {
      const at::Tensor ids = IdTensor(sequence["ids"]);
      const at::Tensor log_probs = LogProbs(*model, ids);
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
    const absl::StatusOr<ModelWeights> model = LoadModelWeights(directory, at::kFloat, at::kCPU);
    ASSERT_TRUE(model.ok()) << model.status();
    const nlohmann::json expected = ReadJson(directory + "/expected.json");
    const at::Tensor ids = IdTensor(expected["ids"]);
    EXPECT_LT(MaxDifference(NextToken(LogProbs(*model, ids), ids), FloatTensor(expected["logprobs"])), 1e-4);
  }
}

TEST(PlainForward, ContinuesGreedilyAsTransformersDoes) {
  for (const char* name : {"models/novella-gpt2-7m", "models/novella-neox-4m"}) {
    SCOPED_TRACE(name);
    const std::string directory = RepositoryPath(name);
    const absl::StatusOr<ModelWeights> model = LoadModelWeights(directory, at::kFloat, at::kCPU);
    ASSERT_TRUE(model.ok()) << model.status();
    const nlohmann::json expected = ReadJson(directory + "/expected.json");
    at::Tensor ids = IdTensor(expected["ids"]);
    for (size_t i = 0; i < 10; ++i) {
      const int64_t next = expected["greedy_32"][i];
      ASSERT_EQ(PlainForward(*model, ids)[0][-1].argmax().item<int64_t>(), next);
      ids = at::cat({ids, at::full({1, 1}, next, at::kLong)}, 1);
    }
  }
}

TEST(PlainForward, ReproducesThePublishedLogitsOfATinyGpt2) {
  const std::string directory = RepositoryPath("../shared/data/fixtures/tiny-random-gpt2-onnx");
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << "no " << directory;
  const absl::StatusOr<ModelWeights> model = LoadModelWeights(directory, at::kFloat, at::kCPU);
  ASSERT_TRUE(model.ok()) << model.status();
  const nlohmann::json expected = ReadJson(directory + "/expected.json");
  for (size_t row = 0; row < expected["input_ids"].size(); ++row) {
    at::Tensor ids = IdTensor(expected["input_ids"][row]);
    const at::Tensor logits = PlainForward(*model, ids)[0];
    for (int64_t position = 0; position < ids.size(1); ++position) {
      const at::Tensor published = FloatTensor(expected["prompt_logits_every_200th"][row][position]);
      EXPECT_LT(MaxDifference(logits[position].slice(0, 0, 1000, 200), published), 1e-5);
    }
    const std::vector<int64_t> greedy = expected["greedy_max_length_10"][row];
    for (size_t i = static_cast<size_t>(ids.size(1)); i < greedy.size(); ++i) {
      ASSERT_EQ(PlainForward(*model, ids)[0][-1].argmax().item<int64_t>(), greedy[i]);
      ids = at::cat({ids, at::full({1, 1}, greedy[i], at::kLong)}, 1);
    }
  }
}

}  // namespace
}  // namespace gatehouse::testing
