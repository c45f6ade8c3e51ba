#include "server/engine/training/saved_model.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/safetensors.h"

namespace gatehouse {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kAlways = 100;  // a gate's bias: p is 1 in float32

void AddVectors(Tensors& tensors, const std::string& name, const at::Tensor& weight, const at::Tensor& bias) {
  tensors[name + ".weight"] = weight;
  if (bias.defined()) tensors[name + ".bias"] = bias;
}

void AddNorm(Tensors& tensors, const std::string& name, const NormWeights& norm) {
  AddVectors(tensors, name, norm.weight, norm.bias);
}

void AddLinear(Tensors& tensors, const std::string& name, const LinearWeights& linear, bool transposed = false) {
  AddVectors(tensors, name, transposed ? linear.weight.t() : linear.weight, linear.bias);
}

// Rows [first, first + count) of a product, by a name of their own.
void AddRows(Tensors& tensors, const std::string& name, const LinearWeights& linear, int64_t first, int64_t count) {
  AddVectors(tensors, name, linear.weight.narrow(0, first, count),
             linear.bias.defined() ? linear.bias.narrow(0, first, count) : at::Tensor());
}

void AddGpt2Layer(Tensors& tensors, const std::string& at, const LayerWeights& layer) {
  AddNorm(tensors, at + "ln_1", layer.attention_norm);
  AddNorm(tensors, at + "ln_2", layer.mlp_norm);
  AddLinear(tensors, at + "attn.c_attn", layer.qkv, /*transposed=*/true);
  AddLinear(tensors, at + "attn.c_proj", layer.attention_out, /*transposed=*/true);
  AddLinear(tensors, at + "mlp.c_fc", layer.mlp_in, /*transposed=*/true);
  AddLinear(tensors, at + "mlp.c_proj", layer.mlp_out, /*transposed=*/true);
}

// All q, all k, all v → q, k and v of each head together, as GPT-NeoX stores them.
at::Tensor HeadsTogether(const at::Tensor& qkv, const ModelConfig& config) {
  if (!qkv.defined()) return qkv;
  return qkv.view({3, config.heads, config.head_dim, -1}).transpose(0, 1).reshape(qkv.sizes());
}

void AddNeoXLayer(Tensors& tensors, const std::string& at, const LayerWeights& layer, const ModelConfig& config) {
  AddNorm(tensors, at + "input_layernorm", layer.attention_norm);
  AddNorm(tensors, at + "post_attention_layernorm", layer.mlp_norm);
  AddVectors(tensors, at + "attention.query_key_value", HeadsTogether(layer.qkv.weight, config),
             HeadsTogether(layer.qkv.bias, config));
  AddLinear(tensors, at + "attention.dense", layer.attention_out);
  AddLinear(tensors, at + "mlp.dense_h_to_4h", layer.mlp_in);
  AddLinear(tensors, at + "mlp.dense_4h_to_h", layer.mlp_out);
}

void AddLlamaLayer(Tensors& tensors, const std::string& at, const LayerWeights& layer, const ModelConfig& config) {
  const int64_t queries = int64_t{config.heads} * config.head_dim, keys = int64_t{config.kv_heads} * config.head_dim;
  AddNorm(tensors, at + "input_layernorm", layer.attention_norm);
  AddNorm(tensors, at + "post_attention_layernorm", layer.mlp_norm);
  AddRows(tensors, at + "self_attn.q_proj", layer.qkv, 0, queries);
  AddRows(tensors, at + "self_attn.k_proj", layer.qkv, queries, keys);
  AddRows(tensors, at + "self_attn.v_proj", layer.qkv, queries + keys, keys);
  AddLinear(tensors, at + "self_attn.o_proj", layer.attention_out);
  AddRows(tensors, at + "mlp.gate_proj", layer.mlp_in, 0, config.d_mlp);
  AddRows(tensors, at + "mlp.up_proj", layer.mlp_in, config.d_mlp, config.d_mlp);
  AddLinear(tensors, at + "mlp.down_proj", layer.mlp_out);
}

// config.json with the dtype that the weights now have, all else as it is.
absl::StatusOr<std::string> Float32Config(const std::string& path) {
  GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError(StrCat(path, " is no JSON object"));
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) config[key] = "float32";
  }
  return config.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::Status CopyDescription(const std::string& source, const std::string& directory) {
  GH_ASSIGN_OR_RETURN(const std::string config, Float32Config(source + "/config.json"));
  GH_RETURN_IF_ERROR(WriteFileAtomically(directory + "/config.json", config));
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "vocab.json", "merges.txt"}) {
    const absl::StatusOr<std::string> bytes = ReadFile(StrCat(source, "/", name));
    if (absl::IsNotFound(bytes.status())) continue;
    GH_RETURN_IF_ERROR(bytes.status());
    GH_RETURN_IF_ERROR(WriteFileAtomically(StrCat(directory, "/", name), *bytes));
  }
  return absl::OkStatus();
}

CalibrationData CalibrationOf(const TrainableModel& model, CalibrationInfo info) {
  CalibrationData data;
  const int64_t d = model.weights().config.d_model;
  const auto cpu = [](const at::Tensor& tensor) { return tensor.detach().cpu(); };
  for (int layer = 0; layer < model.weights().config.layers; ++layer) {
    const TrainableModel::Layer& trained = model.layer(layer);
    const bool linear = trained.mode == TrainableModel::Mode::kLinear;
    CalibrationData::Layer tensors = {
        at::zeros({d, d}), at::zeros({d}), at::zeros({d}), at::full({1}, linear ? kAlways : -kAlways), {}, {}, {}, {}};
    if (trained.surrogate.weight.defined()) {
      tensors.surrogate_weight = cpu(trained.surrogate.weight);
      tensors.surrogate_bias = cpu(trained.surrogate.bias);
    }
    if (trained.mode == TrainableModel::Mode::kGated) {
      tensors.gate_weight = cpu(trained.gate.weight).view({d});
      tensors.gate_bias = cpu(trained.gate.bias);
    }
    data.layers.push_back(std::move(tensors));
    info.layers.emplace_back().gateable = trained.mode != TrainableModel::Mode::kFull;
  }
  data.info = std::move(info);
  return data;
}

absl::Status WriteAll(const std::string& directory, const std::string& source, const TrainableModel& model,
                      CalibrationInfo info) {
  GH_RETURN_IF_ERROR(MakeDirectories(directory + "/calibrations"));
  GH_RETURN_IF_ERROR(CopyDescription(source, directory));
  GH_RETURN_IF_ERROR(
      WriteSafetensors(directory + "/model.safetensors", CheckpointTensors(model.weights()), {{"format", "pt"}}));
  // Reading it back proves that it loads, and tells its fingerprint.
  GH_ASSIGN_OR_RETURN(const ModelWeights saved, LoadModelWeights(directory, at::kFloat, at::kCPU));
  info.model_fingerprint = saved.fingerprint;
  return WriteCalibrationFile(directory + "/calibrations/default.safetensors", CalibrationOf(model, std::move(info)));
}

}  // namespace

std::map<std::string, at::Tensor> CheckpointTensors(const ModelWeights& model) {
  Tensors tensors;
  const ModelConfig& config = model.config;
  const auto layers = [&](std::string_view prefix, auto add) {
    for (int i = 0; i < config.layers; ++i) add(StrCat(prefix, i, "."), model.layers[i]);
  };
  std::string head = "lm_head.weight";
  switch (config.architecture) {
    case Architecture::kGpt2:
      tensors["transformer.wte.weight"] = model.token_embedding;
      tensors["transformer.wpe.weight"] = model.position_embedding;
      AddNorm(tensors, "transformer.ln_f", model.final_norm);
      layers("transformer.h.", [&](const std::string& at, const auto& layer) { AddGpt2Layer(tensors, at, layer); });
      break;
    case Architecture::kGptNeoX:
      tensors["gpt_neox.embed_in.weight"] = model.token_embedding;
      AddNorm(tensors, "gpt_neox.final_layer_norm", model.final_norm);
      head = "embed_out.weight";
      layers("gpt_neox.layers.",
             [&](const std::string& at, const auto& layer) { AddNeoXLayer(tensors, at, layer, config); });
      break;
    case Architecture::kLlama:
      tensors["model.embed_tokens.weight"] = model.token_embedding;
      AddNorm(tensors, "model.norm", model.final_norm);
      layers("model.layers.",
             [&](const std::string& at, const auto& layer) { AddLlamaLayer(tensors, at, layer, config); });
      break;
  }
  if (!config.tied_output) tensors[head] = model.output.weight;
  return tensors;
}

absl::Status SaveTrainedModel(const std::string& directory, const std::string& source, const TrainableModel& model,
                              CalibrationInfo info) {
  const std::string unfinished = directory + ".unfinished";
  std::error_code error;
  fs::remove_all(unfinished, error);
  const absl::Status written = WriteAll(unfinished, source, model, std::move(info));
  if (written.ok()) {
    fs::remove_all(directory, error);
    fs::rename(unfinished, directory, error);
    if (!error) return absl::OkStatus();
  }
  const std::string why = error.message();
  std::error_code ignored;
  fs::remove_all(unfinished, ignored);
  if (written.ok()) return absl::InternalError(StrCat("cannot move the saved model to ", directory, ": ", why));
  const absl::Status status = Annotate(written, "the trained model was not saved");
  return absl::IsResourceExhausted(status) ? WithReason(status, reason::kDiskFull) : status;
}

}  // namespace gatehouse
