#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_CONFIG_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse {

enum class Architecture { kGpt2, kGptNeoX, kLlama };
enum class NormKind { kLayerNorm, kRmsNorm };
enum class Activation { kGeluTanh, kGeluErf, kRelu, kSilu };

// The shape and the choices of a model, the same words for every architecture.
struct ModelConfig {
  Architecture architecture = Architecture::kGpt2;
  int layers = 0;
  int d_model = 0;
  int d_mlp = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int context = 0;
  NormKind norm = NormKind::kLayerNorm;
  double norm_eps = 1e-5;
  Activation activation = Activation::kGeluTanh;
  bool gated_mlp = false;          // SwiGLU: down(activation(gate x) · up x)
  bool parallel_residual = false;  // the MLP reads the layer's input (GPT-NeoX)
  bool tied_output = false;
  bool attention_bias = true;
  bool mlp_bias = true;
  // 1/√head_dim unless scale_attn_weights is false.
  bool scale_attention = true;
  bool scale_attention_by_layer = false;  // further divided by (layer + 1)
  // Rotary embedding: pairs (i, i + rotary_dims / 2) of the first rotary_dims of each
  // head turn by position · inv_freq[i]; scaling of any kind is already in inv_freq.
  // No rotary embedding where rotary_dims is 0.
  int rotary_dims = 0;
  std::vector<float> inv_freq;  // [rotary_dims / 2]
  // Ids past the vocabulary are left out: they cannot occur.
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;

  // The scale of the attention scores of one layer.
  double AttentionScale(int layer) const;
};

// Reads config.json (and generation_config.json, which may be empty, for the end-of-
// text ids).  InvalidArgument naming the key for anything missing, out of range,
// inconsistent or unknown.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_config_json);

// Reads the files of a model directory.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_CONFIG_H_
