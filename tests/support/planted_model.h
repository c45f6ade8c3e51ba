#ifndef GATEHOUSE_TESTS_SUPPORT_PLANTED_MODEL_H_
#define GATEHOUSE_TESTS_SUPPORT_PLANTED_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gatehouse::testing {

// A GPT-2 of 4 layers, d_model 64, 256 neurons a layer, 1,500 tokens and context 128 whose
// MLPs are known by construction.  Each token carries a number s along one direction u of
// the residual stream that nothing writes to: for 4 % of the words of the corpus s is in
// [−1.2, −0.8] (the far side), for all others in [0.8, 4].
//   layer 0   exactly linear on its inputs: every neuron is far on the straight side of GELU
//   layer 1   random; with `sink`, position 0's output is enormous and follows its input
//             non-linearly
//   layer 2   random
//   layer 3   k consensus neurons that fire unless a token is on the far side, and one
//             exception neuron that fires only there and writes far more than the rest; it is
//             the last, since a layer after it would read what these write, and follow it
// The model predicts that its last token comes again; in the corpus that is so half the
// time.
struct PlantedOptions {
  int consensus = 7;  // k, at most 7
  // Random neurons of every base rate beside the planted ones in layer 3, and attention
  // that mixes contexts.
  bool noise = true;
  bool sink = false;
  // Layer 3's MLP drawn anew instead of planted, nothing to find.
  bool random_weights = false;
  uint64_t seed = 1;
};

// What a calibration must find.
struct PlantedTruth {
  int linear_layer = 0;
  int layer = 3;
  std::vector<int> consensus;  // ascending
  std::vector<int> exception;
};

// Writes a Hugging Face model directory: config.json, model.safetensors, tokenizer.json,
// and corpus.txt, a text of `corpus_tokens` tokens.
absl::StatusOr<PlantedTruth> WritePlantedModel(const std::string& directory, const PlantedOptions& options = {},
                                               int64_t corpus_tokens = 24'000);

// The tokens of corpus.txt.
std::vector<int32_t> PlantedCorpus(int64_t tokens, uint64_t seed);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_SUPPORT_PLANTED_MODEL_H_
