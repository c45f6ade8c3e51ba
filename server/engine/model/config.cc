#include "server/engine/model/config.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/model/json_object.h"
#include "server/engine/model/rotary.h"

namespace gatehouse {
namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxHeads = int64_t{1} << 16;
constexpr int64_t kMaxHeadDim = int64_t{1} << 14;
constexpr int64_t kMaxRows = int64_t{1} << 26;  // vocabulary, context
constexpr int64_t kMaxConfigBytes = int64_t{1} << 24;

// A member's place in the ModelConfig and its key.
struct Size {
  int ModelConfig::*member;
  std::string_view key;
  int64_t high;
};

absl::Status ReadSizes(const JsonObject& json, std::initializer_list<Size> sizes, ModelConfig& config) {
  for (const Size& size : sizes) {
    GH_ASSIGN_OR_RETURN(const int64_t value, json.Int(size.key, 1, size.high));
    config.*size.member = static_cast<int>(value);
  }
  return absl::OkStatus();
}

absl::Status ReadActivation(const JsonObject& json, std::string_view key, std::string_view absent,
                            ModelConfig& config) {
  static const std::map<std::string, Activation, std::less<>> kKnown = {
      {"gelu", Activation::kGeluErf},       {"gelu_python", Activation::kGeluErf},
      {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"gelu_python_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu},          {"silu", Activation::kSilu},
      {"swish", Activation::kSilu}};
  GH_ASSIGN_OR_RETURN(const std::string name, json.StringOr(key, absent));
  const auto found = kKnown.find(name);
  if (found == kKnown.end()) return json.Error(key, StrCat("\"", name, "\" is not a supported activation"));
  config.activation = found->second;
  return absl::OkStatus();
}

// Sets head_dim to d_model / heads; an explicit one may not say otherwise.
absl::Status SplitHeads(const JsonObject& json, std::string_view width_key, ModelConfig& config) {
  if (config.d_model % config.heads != 0) {
    return json.Error(width_key, StrCat("of ", config.d_model, " is no multiple of the ", config.heads, " heads"));
  }
  config.head_dim = config.d_model / config.heads;
  config.kv_heads = config.heads;
  GH_ASSIGN_OR_RETURN(const int64_t given, json.IntOr("head_dim", 1, kMaxHeadDim, config.head_dim));
  if (given != config.head_dim) {
    return json.Error("head_dim", StrCat("must be ", config.head_dim, ", the width divided by the heads"));
  }
  return absl::OkStatus();
}

// Keys that change what a model computes and that this engine does not implement.
// Values that mean "not used" pass.
absl::Status RefuseUnsupported(const JsonObject& json) {
  constexpr std::string_view kKeys[] = {"add_cross_attention",
                                        "attn_logit_softcapping",
                                        "attention_multiplier",
                                        "clip_qkv",
                                        "compression_config",
                                        "embedding_multiplier",
                                        "final_logit_softcapping",
                                        "is_encoder_decoder",
                                        "layer_types",
                                        "logit_scale",
                                        "logits_scaling",
                                        "no_rope_layers",
                                        "num_experts",
                                        "num_local_experts",
                                        "pruned_heads",
                                        "qk_layernorm",
                                        "quantization_config",
                                        "residual_multiplier",
                                        "rope_interleaved",
                                        "sliding_window",
                                        "use_qk_norm"};
  for (const std::string_view key : kKeys) {
    const nlohmann::json* value = json.Find(key);
    if (value == nullptr || *value == false) continue;
    if ((value->is_object() || value->is_array()) && value->empty()) continue;
    if (value->is_number() && *value == 1 && key.ends_with("multiplier")) continue;
    return json.Error(key, "is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadGpt2(const JsonObject& json, ModelConfig& config) {
  config.architecture = Architecture::kGpt2;
  GH_RETURN_IF_ERROR(ReadSizes(json,
                               {{&ModelConfig::layers, "n_layer", kMaxLayers},
                                {&ModelConfig::d_model, "n_embd", kMaxWidth},
                                {&ModelConfig::heads, "n_head", kMaxHeads},
                                {&ModelConfig::context, "n_positions", kMaxRows}},
                               config));
  GH_RETURN_IF_ERROR(SplitHeads(json, "n_embd", config));
  GH_ASSIGN_OR_RETURN(const int64_t inner, json.IntOr("n_inner", 1, 4 * kMaxWidth, 4 * int64_t{config.d_model}));
  config.d_mlp = static_cast<int>(inner);
  GH_RETURN_IF_ERROR(ReadActivation(json, "activation_function", "gelu_new", config));
  GH_ASSIGN_OR_RETURN(config.norm_eps, json.PositiveOr("layer_norm_epsilon", 1.0, 1e-5));
  GH_ASSIGN_OR_RETURN(config.scale_attention, json.BoolOr("scale_attn_weights", true));
  GH_ASSIGN_OR_RETURN(config.scale_attention_by_layer, json.BoolOr("scale_attn_by_inverse_layer_idx", false));
  GH_ASSIGN_OR_RETURN(config.tied_output, json.BoolOr("tie_word_embeddings", true));
  return absl::OkStatus();
}

absl::Status ReadNeoXOrLlamaSizes(const JsonObject& json, ModelConfig& config) {
  return ReadSizes(json,
                   {{&ModelConfig::layers, "num_hidden_layers", kMaxLayers},
                    {&ModelConfig::d_model, "hidden_size", kMaxWidth},
                    {&ModelConfig::d_mlp, "intermediate_size", 4 * kMaxWidth},
                    {&ModelConfig::heads, "num_attention_heads", kMaxHeads},
                    {&ModelConfig::context, "max_position_embeddings", kMaxRows}},
                   config);
}

absl::Status ReadRotaryInto(const JsonObject& json, ModelConfig& config) {
  GH_ASSIGN_OR_RETURN(RotaryFrequencies rotary, ReadRotary(json, config.architecture, config.head_dim, config.context));
  config.rotary_dims = rotary.dims;
  config.inv_freq = std::move(rotary.inv_freq);
  return absl::OkStatus();
}

absl::Status ReadNeoX(const JsonObject& json, ModelConfig& config) {
  config.architecture = Architecture::kGptNeoX;
  GH_RETURN_IF_ERROR(ReadNeoXOrLlamaSizes(json, config));
  GH_RETURN_IF_ERROR(SplitHeads(json, "hidden_size", config));
  GH_RETURN_IF_ERROR(ReadActivation(json, "hidden_act", "gelu", config));
  GH_ASSIGN_OR_RETURN(config.norm_eps, json.PositiveOr("layer_norm_eps", 1.0, 1e-5));
  GH_ASSIGN_OR_RETURN(config.parallel_residual, json.BoolOr("use_parallel_residual", true));
  GH_ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", true));
  GH_ASSIGN_OR_RETURN(config.tied_output, json.BoolOr("tie_word_embeddings", false));
  return ReadRotaryInto(json, config);
}

absl::Status ReadLlama(const JsonObject& json, ModelConfig& config) {
  config.architecture = Architecture::kLlama;
  config.norm = NormKind::kRmsNorm;
  config.gated_mlp = true;
  GH_RETURN_IF_ERROR(ReadNeoXOrLlamaSizes(json, config));
  GH_ASSIGN_OR_RETURN(const int64_t kv_heads, json.IntOr("num_key_value_heads", 1, config.heads, config.heads));
  if (config.heads % kv_heads != 0) {
    return json.Error("num_key_value_heads", StrCat("must divide the ", config.heads, " heads; it is ", kv_heads));
  }
  if (json.Has("head_dim")) {
    GH_ASSIGN_OR_RETURN(const int64_t head_dim, json.Int("head_dim", 1, kMaxHeadDim));
    config.head_dim = static_cast<int>(head_dim);
  } else {
    GH_RETURN_IF_ERROR(SplitHeads(json, "hidden_size", config));
  }
  config.kv_heads = static_cast<int>(kv_heads);
  GH_RETURN_IF_ERROR(ReadActivation(json, "hidden_act", "silu", config));
  GH_ASSIGN_OR_RETURN(config.norm_eps, json.PositiveOr("rms_norm_eps", 1.0, 1e-6));
  GH_ASSIGN_OR_RETURN(config.attention_bias, json.BoolOr("attention_bias", false));
  GH_ASSIGN_OR_RETURN(config.mlp_bias, json.BoolOr("mlp_bias", false));
  GH_ASSIGN_OR_RETURN(config.tied_output, json.BoolOr("tie_word_embeddings", false));
  return ReadRotaryInto(json, config);
}

// The ids of `key`: one, a list, or none.  Ids past the vocabulary are left out: they
// cannot be sampled (small test models keep the defaults of large ones).
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const JsonObject& json, std::string_view key, int vocab_size) {
  std::vector<int32_t> ids;
  const nlohmann::json* value = json.Find(key);
  if (value == nullptr) return ids;
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  for (const nlohmann::json& item : list) {
    if (!item.is_number_unsigned()) return json.Error(key, "must be a token id, or a list of them, 0 or above");
    const uint64_t id = item.get<uint64_t>();
    if (id < static_cast<uint64_t>(vocab_size)) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::Status ReadSpecialIds(const JsonObject& json, std::string_view generation_json, ModelConfig& config) {
  GH_ASSIGN_OR_RETURN(config.eos_token_ids, ReadTokenIds(json, "eos_token_id", config.vocab_size));
  GH_ASSIGN_OR_RETURN(std::vector<int32_t> bos, ReadTokenIds(json, "bos_token_id", config.vocab_size));
  if (!generation_json.empty()) {
    GH_ASSIGN_OR_RETURN(const JsonObject generation, JsonObject::Parse(generation_json, "generation_config.json"));
    if (generation.Has("eos_token_id")) {
      GH_ASSIGN_OR_RETURN(config.eos_token_ids, ReadTokenIds(generation, "eos_token_id", config.vocab_size));
    }
    if (generation.Has("bos_token_id")) {
      GH_ASSIGN_OR_RETURN(bos, ReadTokenIds(generation, "bos_token_id", config.vocab_size));
    }
  }
  if (!bos.empty()) config.bos_token_id = bos.front();
  return absl::OkStatus();
}

}  // namespace

double ModelConfig::AttentionScale(int layer) const {
  double scale = scale_attention ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : 1.0;
  if (scale_attention_by_layer) scale /= layer + 1;
  return scale;
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_config_json) {
  using ReadFn = absl::Status (*)(const JsonObject&, ModelConfig&);
  static const std::map<std::string, ReadFn> kReaders = {
      {"gpt2", ReadGpt2}, {"gpt_neox", ReadNeoX}, {"llama", ReadLlama}};
  GH_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(config_json, "config.json"));
  GH_ASSIGN_OR_RETURN(const std::string type, json.String("model_type"));
  const auto reader = kReaders.find(type);
  if (reader == kReaders.end()) {
    return json.Error("model_type", StrCat("\"", type, "\" is not supported (gpt2, gpt_neox and llama are)"));
  }
  GH_RETURN_IF_ERROR(RefuseUnsupported(json));
  ModelConfig config;
  GH_RETURN_IF_ERROR(ReadSizes(json, {{&ModelConfig::vocab_size, "vocab_size", kMaxRows}}, config));
  GH_RETURN_IF_ERROR(reader->second(json, config));
  GH_RETURN_IF_ERROR(ReadSpecialIds(json, generation_config_json, config));
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory) {
  GH_ASSIGN_OR_RETURN(const std::string config, ReadFile(directory + "/config.json", kMaxConfigBytes));
  absl::StatusOr<std::string> generation = ReadFile(directory + "/generation_config.json", kMaxConfigBytes);
  if (!generation.ok() && !absl::IsNotFound(generation.status())) return generation.status();
  absl::StatusOr<ModelConfig> parsed = ParseModelConfig(config, generation.ok() ? *generation : std::string());
  if (!parsed.ok()) return Annotate(parsed.status(), directory);
  return parsed;
}

}  // namespace gatehouse
