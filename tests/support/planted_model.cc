#include "tests/support/planted_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/model/safetensors.h"
#include "tests/support/planted_tokenizer.h"

namespace gatehouse::testing {
namespace {

constexpr int kLayers = 4, kModel = 64, kMlp = 256, kContext = 128;
constexpr int kConsensus[] = {17, 42, 63, 101, 150, 199, 230};
constexpr int kException = 123;
constexpr int kSinkNeuron = 77;
constexpr int kFarStep = 25;  // one word in 25 is on the far side: 4 %

// The stream's dimensions: 0 and 1 carry s (as ±s/√2, so that LayerNorm's mean stays 0), 2
// and 3 carry the sink's mark, the others everything else.
constexpr int kFirstFree = 4, kFree = kModel - kFirstFree;
const float kHalfRoot = static_cast<float>(std::sqrt(0.5));

bool IsFar(int32_t token) { return token >= kFirstWord && (token - kFirstWord) % kFarStep == 0; }

class Builder {
 public:
  explicit Builder(const PlantedOptions& options)
      : options_(options), random_(at::detail::createCPUGenerator(options.seed)) {}

  std::map<std::string, at::Tensor> Build() {
    AddEmbeddings();
    for (int layer = 0; layer < kLayers; ++layer) AddAttention(layer);
    AddLinearMlp(0);
    AddRandomMlp(1);
    if (options_.sink) AddSink(1);
    AddRandomMlp(2);
    if (options_.random_weights) {
      AddRandomMlp(3);
    } else {
      AddPlantedMlp(3);
    }
    tensors_["ln_f.weight"] = at::full({kModel}, 0.12);
    tensors_["ln_f.bias"] = at::zeros({kModel});
    return std::move(tensors_);
  }

 private:
  at::Tensor Normal(at::IntArrayRef shape, double deviation) { return at::randn(shape, random_) * deviation; }

  // [rows, kModel]: nothing along u and the sink's mark, mean 0, rows of about this norm.
  at::Tensor FreeRows(int64_t rows, double norm) {
    at::Tensor result = at::zeros({rows, kModel});
    const at::Tensor free = Normal({rows, kFree}, norm / std::sqrt(kFree));
    result.narrow(1, kFirstFree, kFree).copy_(free - free.mean(1, true));
    return result;
  }

  void AddEmbeddings() {
    at::Tensor tokens = FreeRows(kPlantedVocabulary, std::sqrt(kFree));
    const at::Tensor spread = at::rand({kPlantedVocabulary}, random_);
    for (int token = 0; token < kPlantedVocabulary; ++token) {
      const float r = spread[token].item<float>();
      const float s = IsFar(token) ? -0.8f - 0.4f * r : 0.8f + 3.2f * r;
      tokens[token][0] = s * kHalfRoot;
      tokens[token][1] = -s * kHalfRoot;
    }
    at::Tensor positions = at::zeros({kContext, kModel});
    if (options_.sink) {
      positions[0][2] = 30 * kHalfRoot;
      positions[0][3] = -30 * kHalfRoot;
    }
    tensors_["wte.weight"] = tokens;
    tensors_["wpe.weight"] = positions;
  }

  void AddAttention(int layer) {
    const std::string prefix = StrCat("h.", layer, ".");
    for (const char* norm : {"ln_1", "ln_2"}) {
      tensors_[prefix + norm + ".weight"] = at::ones({kModel});
      tensors_[prefix + norm + ".bias"] = at::zeros({kModel});
    }
    tensors_[prefix + "attn.c_attn.weight"] = Normal({kModel, 3 * kModel}, 0.1);
    tensors_[prefix + "attn.c_attn.bias"] = at::zeros({3 * kModel});
    tensors_[prefix + "attn.c_proj.weight"] = FreeRows(kModel, options_.noise ? 0.3 : 0.0);
    tensors_[prefix + "attn.c_proj.bias"] = at::zeros({kModel});
  }

  // in: [kModel, kMlp], out: [kMlp, kModel], as GPT-2 stores them.
  void AddMlp(int layer, const at::Tensor& in, const at::Tensor& in_bias, const at::Tensor& out,
              const at::Tensor& out_bias) {
    const std::string prefix = StrCat("h.", layer, ".mlp.");
    tensors_[prefix + "c_fc.weight"] = in;
    tensors_[prefix + "c_fc.bias"] = in_bias;
    tensors_[prefix + "c_proj.weight"] = out;
    tensors_[prefix + "c_proj.bias"] = out_bias;
  }

  // GELU(z) is z, to the last bit, for z above 6: with a bias of 12 the MLP is linear.
  void AddLinearMlp(int layer) {
    const at::Tensor out = FreeRows(kMlp, 0.05);
    AddMlp(layer, Normal({kModel, kMlp}, 0.1), at::full({kMlp}, 12.0), out, out.sum(0) * -12.0);
  }

  // Without biases all neurons fire about 43 % of the time, where neither rule can name them.
  void AddRandomMlp(int layer) {
    AddMlp(layer, FreeRows(kMlp, 1).t().contiguous(), at::zeros({kMlp}), FreeRows(kMlp, 0.08), at::zeros({kModel}));
  }

  // One neuron that only position 0's mark wakes, for about half the tokens, and then in
  // proportion to another direction: no line follows that, and it writes enormously.
  void AddSink(int layer) {
    const std::string prefix = StrCat("h.", layer, ".mlp.");
    at::Tensor column = FreeRows(1, 8)[0];
    column[2] = 4 * kHalfRoot;
    column[3] = -4 * kHalfRoot;
    tensors_[prefix + "c_fc.weight"].select(1, kSinkNeuron).copy_(column);
    tensors_[prefix + "c_fc.bias"][kSinkNeuron] = -4 * 7.7;
    tensors_[prefix + "c_proj.weight"][kSinkNeuron].copy_(FreeRows(1, 20'000)[0]);
  }

  void AddPlantedMlp(int layer) {
    const double noise = options_.noise ? 1 : 0;
    at::Tensor in = FreeRows(kMlp, noise).t().contiguous(), in_bias = Normal({kMlp}, 0.7 * noise);
    at::Tensor out = FreeRows(kMlp, 0.08 * noise);
    const auto plant = [&](int neuron, float slope, double norm) {
      in.select(1, neuron).zero_();
      in[0][neuron] = slope * kHalfRoot;
      in[1][neuron] = -slope * kHalfRoot;
      in_bias[neuron] = 0;
      out[neuron].copy_(FreeRows(1, norm)[0]);
    };
    for (const int neuron : std::span(kConsensus).first(options_.consensus)) plant(neuron, 10, 0.04);
    plant(kException, -10, 0.5);
    AddMlp(layer, in, in_bias, out, at::zeros({kModel}));
  }

  const PlantedOptions& options_;
  at::Generator random_;
  std::map<std::string, at::Tensor> tensors_;
};

std::string ConfigJson() {
  return StrCat(R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": )", kPlantedVocabulary,
                R"(, "n_positions": )", kContext, R"(, "n_embd": )", kModel, R"(, "n_layer": )", kLayers,
                R"(, "n_head": 4, "n_inner": null, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,)",
                R"( "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 0})", "\n");
}

}  // namespace

std::vector<int32_t> PlantedCorpus(int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto word = [&] { return kFirstWord + static_cast<int32_t>(random() % (kPlantedVocabulary - kFirstWord)); };
  std::vector<int32_t> corpus;
  for (int64_t i = 0; i < tokens; ++i) {
    const bool again = i > 0 && random() % 2 == 0;
    corpus.push_back(again ? corpus.back() : word());
  }
  return corpus;
}

absl::StatusOr<PlantedTruth> WritePlantedModel(const std::string& directory, const PlantedOptions& options,
                                               int64_t corpus_tokens) {
  GH_RETURN_IF_ERROR(MakeDirectories(directory));
  GH_RETURN_IF_ERROR(WriteFileAtomically(directory + "/config.json", ConfigJson()));
  GH_RETURN_IF_ERROR(WriteSafetensors(directory + "/model.safetensors", Builder(options).Build(), {}));
  GH_RETURN_IF_ERROR(WriteFileAtomically(directory + "/tokenizer.json", PlantedTokenizerJson()));
  std::string text;
  for (const int32_t token : PlantedCorpus(corpus_tokens, options.seed)) text += PlantedWord(token);
  GH_RETURN_IF_ERROR(WriteFileAtomically(directory + "/corpus.txt", text));

  PlantedTruth truth;
  if (options.random_weights) return truth;
  truth.consensus.assign(std::begin(kConsensus), std::begin(kConsensus) + options.consensus);
  truth.exception = {kException};
  return truth;
}

}  // namespace gatehouse::testing
