#ifndef GATEHOUSE_TESTS_ENGINE_ANALYSIS_PLANTED_CONSENSUS_H_
#define GATEHOUSE_TESTS_ENGINE_ANALYSIS_PLANTED_CONSENSUS_H_

#include <ATen/ATen.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/analysis/experiment_setup.h"
#include "tests/engine/analysis/experiment_run.h"
#include "tests/support/planted_tokenizer.h"

namespace gatehouse::testing {

// The planted model's consensus architecture, which depends on the token alone: all k consensus
// neurons of layer 3 fire unless a word is on the far side, and the exception neuron fires there
// alone.

// Planted neurons, their number and whether there is anything else in the model.
using Planting = std::pair<int, bool>;
inline const Planting kPlantings[] = {{1, true}, {2, true}, {7, true}, {1, false}, {2, false}, {7, false}};

constexpr int kPlantedLayer = 3;
constexpr int kPlantedException = 123;
inline std::vector<double> PlantedConsensus(int count) {
  const std::vector<double> all = {17, 42, 63, 101, 150, 199, 230};
  return {all.begin(), all.begin() + count};
}

inline bool IsFar(int32_t token) { return token >= kFirstWord && (token - kFirstWord) % 25 == 0; }

// After every word of the far side comes kSuccessor, and the exception neuron, which fires there
// alone, says so.
constexpr int32_t kSuccessor = kFirstWord + 1;
inline ModelWeights LoadWithMemory(const PlantedOptions& options) {
  ModelWeights model = Load(options);
  at::Tensor& out = model.layers[kPlantedLayer].mlp_out.weight;  // [d_model, d_mlp]
  out.select(1, kPlantedException).copy_(0.12 * model.token_embedding[kSuccessor]);
  return model;
}
inline Corpus TextToRemember(uint64_t seed, int64_t tokens = kCorpusTokens) {
  Corpus corpus = Text(seed, tokens);
  for (size_t i = 1; i < corpus.tokens.size(); ++i) {
    if (IsFar(corpus.tokens[i - 1])) corpus.tokens[i] = kSuccessor;
  }
  return corpus;
}

// The tokens of the report split: [blocks, window] int64.
inline at::Tensor ReportTokens(const ModelWeights& model, const ExperimentSpec& spec, const Corpus& corpus) {
  const ProgressFn progress;
  const std::atomic<bool> cancelled{false};
  const ExperimentContext context{model, spec.options, std::span(&corpus, 1), "", progress, cancelled};
  const auto plans = PlanCorpora(context);
  EXPECT_TRUE(plans.ok()) << plans.status();
  return plans->front().Stream(model, plans->front().splits.report).ids();
}

// Which of them are on the far side: bool.
inline at::Tensor FarSide(const at::Tensor& ids) { return (ids >= kFirstWord) & ((ids - kFirstWord) % 25 == 0); }

inline const ReportArray& Array(const ExperimentResult& result, const std::string& name) {
  for (const ReportArray& array : result.arrays) {
    if (array.name == name) return array;
  }
  ADD_FAILURE() << "no array " << name;
  return result.arrays.front();
}
// Of integers.
inline at::Tensor Integers(const ExperimentResult& result, const std::string& name) {
  const ReportArray& array = Array(result, name);
  return at::tensor(std::get<std::vector<int64_t>>(array.values)).view(array.shape);
}
// Of numbers.
inline at::Tensor Floats(const ExperimentResult& result, const std::string& name) {
  const ReportArray& array = Array(result, name);
  return at::tensor(std::get<std::vector<float>>(array.values)).view(array.shape);
}

// Where a row of the table has these values of number columns.
inline std::vector<size_t> RowsWith(const ReportTable& table,
                                    const std::vector<std::pair<std::string, double>>& values) {
  std::vector<size_t> rows;
  for (size_t i = 0; i < Numbers(table, values.front().first).size(); ++i) {
    if (std::all_of(values.begin(), values.end(),
                    [&](const auto& value) { return Numbers(table, value.first)[i] == value.second; })) {
      rows.push_back(i);
    }
  }
  return rows;
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_ANALYSIS_PLANTED_CONSENSUS_H_
