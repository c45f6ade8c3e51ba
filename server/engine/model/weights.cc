#include "server/engine/model/weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <initializer_list>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/base/huge_pages.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/model/checkpoint.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

using Shape = std::vector<int64_t>;

std::string_view PrefixOf(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGpt2:
      return "transformer.";
    case Architecture::kGptNeoX:
      return "gpt_neox.";
    case Architecture::kLlama:
      return "model.";
  }
  return "";
}

// Copies the tensors of a checkpoint, one by one, into the layout of ModelWeights.
class WeightsLoader {
 public:
  WeightsLoader(Checkpoint& checkpoint, const ModelConfig& config, at::ScalarType dtype, at::Device device)
      : checkpoint_(checkpoint), config_(config), dtype_(dtype), device_(device) {}

  // A matrix in the serving dtype, as it lies in the file.
  absl::StatusOr<at::Tensor> Matrix(const std::string& name, int64_t rows, int64_t columns) {
    return Stacked({name}, rows, columns, /*transposed=*/false);
  }

  // Matrices of `rows` rows each (or of the rows given) under one another.
  absl::StatusOr<at::Tensor> Stacked(std::initializer_list<std::string> names, int64_t rows, int64_t columns,
                                     bool transposed) {
    return Stacked(names, Shape(names.size(), rows), columns, transposed);
  }

  absl::StatusOr<at::Tensor> Stacked(std::initializer_list<std::string> names, const Shape& rows, int64_t columns,
                                     bool transposed) {
    // All shapes are checked before memory is asked for.
    std::vector<at::Tensor> sources;
    int64_t total = 0;
    for (const std::string& name : names) {
      const int64_t count = rows[sources.size()];
      const Shape shape = transposed ? Shape{columns, count} : Shape{count, columns};
      GH_ASSIGN_OR_RETURN(const at::Tensor source, checkpoint_.Get(name, shape));
      sources.push_back(transposed ? source.t() : source);
      total += count;
    }
    at::Tensor matrix = at::empty({total, columns}, dtype_);
    PreferHugePages(matrix.mutable_data_ptr(), matrix.nbytes());
    int64_t start = 0;
    for (const at::Tensor& source : sources) {
      matrix.narrow(0, start, source.size(0)).copy_(source);
      start += source.size(0);
    }
    return matrix.to(device_);
  }

  // Vectors one after another, float32.
  absl::StatusOr<at::Tensor> Vector(std::initializer_list<std::string> names, const Shape& sizes) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : names) {
      GH_ASSIGN_OR_RETURN(const at::Tensor source, checkpoint_.Get(name, Shape{sizes[parts.size()]}));
      parts.push_back(source.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    }
    return (parts.size() == 1 ? parts.front() : at::cat(parts)).to(device_);
  }

  absl::StatusOr<LinearWeights> Linear(const std::string& name, int64_t out, int64_t in, bool bias,
                                       bool transposed = false) {
    LinearWeights linear;
    GH_ASSIGN_OR_RETURN(linear.weight, Stacked({name + ".weight"}, out, in, transposed));
    if (bias) {
      GH_ASSIGN_OR_RETURN(linear.bias, Vector({name + ".bias"}, {out}));
    }
    return linear;
  }

  absl::StatusOr<NormWeights> Norm(const std::string& name) {
    NormWeights norm;
    GH_ASSIGN_OR_RETURN(norm.weight, Vector({name + ".weight"}, {config_.d_model}));
    if (config_.norm == NormKind::kLayerNorm) {
      GH_ASSIGN_OR_RETURN(norm.bias, Vector({name + ".bias"}, {config_.d_model}));
    }
    return norm;
  }

  const ModelConfig& config() const { return config_; }
  Checkpoint& checkpoint() { return checkpoint_; }

 private:
  Checkpoint& checkpoint_;
  const ModelConfig& config_;
  at::ScalarType dtype_;
  at::Device device_;
};

// GPT-2 stores [in, out] (its Conv1D), q, k and v already one after another.
absl::StatusOr<LayerWeights> Gpt2Layer(WeightsLoader& load, int index) {
  const ModelConfig& config = load.config();
  const int64_t d = config.d_model;
  const std::string at = StrCat("h.", index, ".");
  load.checkpoint().Ignore(at + "attn.bias");  // the causal mask
  load.checkpoint().Ignore(at + "attn.masked_bias");
  LayerWeights layer;
  GH_ASSIGN_OR_RETURN(layer.attention_norm, load.Norm(at + "ln_1"));
  GH_ASSIGN_OR_RETURN(layer.mlp_norm, load.Norm(at + "ln_2"));
  GH_ASSIGN_OR_RETURN(layer.qkv, load.Linear(at + "attn.c_attn", 3 * d, d, true, /*transposed=*/true));
  GH_ASSIGN_OR_RETURN(layer.attention_out, load.Linear(at + "attn.c_proj", d, d, true, /*transposed=*/true));
  GH_ASSIGN_OR_RETURN(layer.mlp_in, load.Linear(at + "mlp.c_fc", config.d_mlp, d, true, /*transposed=*/true));
  GH_ASSIGN_OR_RETURN(layer.mlp_out, load.Linear(at + "mlp.c_proj", d, config.d_mlp, true, /*transposed=*/true));
  return layer;
}

// GPT-NeoX stores q, k and v of each head together; here all q come first.
at::Tensor HeadsApart(const at::Tensor& qkv, const ModelConfig& config) {
  if (!qkv.defined()) return qkv;
  const at::Tensor split = qkv.view({config.heads, 3, config.head_dim, -1}).transpose(0, 1);
  return split.reshape(qkv.sizes()).contiguous();
}

absl::StatusOr<LayerWeights> NeoXLayer(WeightsLoader& load, int index) {
  const ModelConfig& config = load.config();
  const int64_t d = config.d_model;
  const std::string at = StrCat("layers.", index, ".");
  for (const char* buffer : {"bias", "masked_bias", "rotary_emb.inv_freq"}) {
    load.checkpoint().Ignore(StrCat(at, "attention.", buffer));
  }
  LayerWeights layer;
  GH_ASSIGN_OR_RETURN(layer.attention_norm, load.Norm(at + "input_layernorm"));
  GH_ASSIGN_OR_RETURN(layer.mlp_norm, load.Norm(at + "post_attention_layernorm"));
  GH_ASSIGN_OR_RETURN(layer.qkv, load.Linear(at + "attention.query_key_value", 3 * d, d, config.attention_bias));
  layer.qkv.weight = HeadsApart(layer.qkv.weight, config);
  layer.qkv.bias = HeadsApart(layer.qkv.bias, config);
  GH_ASSIGN_OR_RETURN(layer.attention_out, load.Linear(at + "attention.dense", d, d, config.attention_bias));
  GH_ASSIGN_OR_RETURN(layer.mlp_in, load.Linear(at + "mlp.dense_h_to_4h", config.d_mlp, d, true));
  GH_ASSIGN_OR_RETURN(layer.mlp_out, load.Linear(at + "mlp.dense_4h_to_h", d, config.d_mlp, true));
  return layer;
}

absl::StatusOr<LayerWeights> LlamaLayer(WeightsLoader& load, int index) {
  const ModelConfig& config = load.config();
  const int64_t d = config.d_model;
  const int64_t queries = int64_t{config.heads} * config.head_dim;
  const int64_t keys = int64_t{config.kv_heads} * config.head_dim;
  const std::string at = StrCat("layers.", index, ".");
  load.checkpoint().Ignore(at + "self_attn.rotary_emb.inv_freq");
  LayerWeights layer;
  GH_ASSIGN_OR_RETURN(layer.attention_norm, load.Norm(at + "input_layernorm"));
  GH_ASSIGN_OR_RETURN(layer.mlp_norm, load.Norm(at + "post_attention_layernorm"));
  const std::string q = at + "self_attn.q_proj", k = at + "self_attn.k_proj", v = at + "self_attn.v_proj";
  GH_ASSIGN_OR_RETURN(layer.qkv.weight, load.Stacked({q + ".weight", k + ".weight", v + ".weight"},
                                                     {queries, keys, keys}, d, /*transposed=*/false));
  if (config.attention_bias) {
    GH_ASSIGN_OR_RETURN(layer.qkv.bias, load.Vector({q + ".bias", k + ".bias", v + ".bias"}, {queries, keys, keys}));
  }
  GH_ASSIGN_OR_RETURN(layer.attention_out, load.Linear(at + "self_attn.o_proj", d, queries, config.attention_bias));
  const std::string gate = at + "mlp.gate_proj", up = at + "mlp.up_proj";
  GH_ASSIGN_OR_RETURN(layer.mlp_in.weight,
                      load.Stacked({gate + ".weight", up + ".weight"}, config.d_mlp, d, /*transposed=*/false));
  if (config.mlp_bias) {
    GH_ASSIGN_OR_RETURN(layer.mlp_in.bias, load.Vector({gate + ".bias", up + ".bias"}, {config.d_mlp, config.d_mlp}));
  }
  GH_ASSIGN_OR_RETURN(layer.mlp_out, load.Linear(at + "mlp.down_proj", d, config.d_mlp, config.mlp_bias));
  return layer;
}

absl::StatusOr<LayerWeights> LoadLayer(WeightsLoader& load, int index) {
  switch (load.config().architecture) {
    case Architecture::kGpt2:
      return Gpt2Layer(load, index);
    case Architecture::kGptNeoX:
      return NeoXLayer(load, index);
    case Architecture::kLlama:
      return LlamaLayer(load, index);
  }
  return absl::InternalError("unknown architecture");
}

// The names of what lies outside the layers.
struct OuterNames {
  std::string embedding, norm, head;
};

OuterNames OuterNamesOf(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGpt2:
      return {"wte.weight", "ln_f", "lm_head.weight"};
    case Architecture::kGptNeoX:
      return {"embed_in.weight", "final_layer_norm", "embed_out.weight"};
    case Architecture::kLlama:
      return {"embed_tokens.weight", "norm", "lm_head.weight"};
  }
  return {};
}

// Embedding and output.  Where config.json ties them, either may be missing; a file
// that holds two different matrices all the same is taken at its word.
absl::Status LoadEnds(WeightsLoader& load, const OuterNames& names, ModelWeights& model) {
  ModelConfig& config = model.config;
  const int64_t vocab = config.vocab_size, d = config.d_model;
  Checkpoint& checkpoint = load.checkpoint();
  const bool has_both = checkpoint.Has(names.embedding) && checkpoint.Has(names.head);
  if (config.tied_output && has_both) {
    const Shape shape = {vocab, d};
    GH_ASSIGN_OR_RETURN(const at::Tensor embedding, checkpoint.Get(names.embedding, shape));
    GH_ASSIGN_OR_RETURN(const at::Tensor head, checkpoint.Get(names.head, shape));
    config.tied_output = embedding.scalar_type() == head.scalar_type() && at::equal(embedding, head);
    if (config.tied_output) {
      checkpoint.Ignore(names.head);
    } else {
      LogWarning(StrCat("config.json ties ", names.head, " to ", names.embedding,
                        ", but the file holds two different ones: both are used"));
    }
  }
  const bool head_only = config.tied_output && !checkpoint.Has(names.embedding) && checkpoint.Has(names.head);
  GH_ASSIGN_OR_RETURN(model.token_embedding, load.Matrix(head_only ? names.head : names.embedding, vocab, d));
  if (config.tied_output) {
    model.output.weight = model.token_embedding;
    return absl::OkStatus();
  }
  GH_ASSIGN_OR_RETURN(model.output.weight, load.Matrix(names.head, vocab, d));
  return absl::OkStatus();
}

absl::Status LoadAll(WeightsLoader& load, ModelWeights& model) {
  const OuterNames names = OuterNamesOf(model.config.architecture);
  GH_RETURN_IF_ERROR(LoadEnds(load, names, model));
  if (model.config.architecture == Architecture::kGpt2) {
    GH_ASSIGN_OR_RETURN(model.position_embedding,
                        load.Matrix("wpe.weight", model.config.context, model.config.d_model));
  }
  GH_ASSIGN_OR_RETURN(model.final_norm, load.Norm(names.norm));
  load.checkpoint().Ignore("rotary_emb.inv_freq");
  for (int index = 0; index < model.config.layers; ++index) {
    GH_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(load, index));
    model.layers.push_back(std::move(layer));
  }
  return load.checkpoint().CheckAllUsed();
}

void Count(const at::Tensor& tensor, ModelWeights& model) {
  if (!tensor.defined()) return;
  model.parameters += tensor.numel();
  model.bytes += static_cast<int64_t>(tensor.nbytes());
}

void CountAll(ModelWeights& model) {
  const auto linear = [&](const LinearWeights& weights) {
    Count(weights.weight, model);
    Count(weights.bias, model);
  };
  const auto norm = [&](const NormWeights& weights) {
    Count(weights.weight, model);
    Count(weights.bias, model);
  };
  Count(model.token_embedding, model);
  Count(model.position_embedding, model);
  if (!model.config.tied_output) linear(model.output);
  norm(model.final_norm);
  for (const LayerWeights& layer : model.layers) {
    norm(layer.attention_norm);
    norm(layer.mlp_norm);
    for (const LinearWeights* part : {&layer.qkv, &layer.attention_out, &layer.mlp_in, &layer.mlp_out}) linear(*part);
  }
}

// What of the configuration changes the numbers, in one form whatever config.json's.
std::string Essentials(const ModelConfig& config) {
  const int sizes[] = {static_cast<int>(config.architecture),
                       config.layers,
                       config.d_model,
                       config.d_mlp,
                       config.heads,
                       config.kv_heads,
                       config.head_dim,
                       config.vocab_size,
                       config.context,
                       static_cast<int>(config.norm),
                       static_cast<int>(config.activation),
                       config.gated_mlp,
                       config.parallel_residual,
                       config.tied_output,
                       config.scale_attention,
                       config.scale_attention_by_layer,
                       config.rotary_dims};
  return StrCat(absl::StrJoin(sizes, ","), ";", config.norm_eps, ";", absl::StrJoin(config.inv_freq, ","));
}

}  // namespace

absl::StatusOr<ModelWeights> LoadModelWeights(const std::string& directory, at::ScalarType dtype, at::Device device) {
  ModelWeights model;
  GH_ASSIGN_OR_RETURN(model.config, LoadModelConfig(directory));
  GH_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory, PrefixOf(model.config.architecture)));
  // Outside inference mode, so that the differentiable path may use the weights.
  const absl::Status status = AtTorchBoundary(
      [&] {
        WeightsLoader loader(checkpoint, model.config, dtype, device);
        return LoadAll(loader, model);
      },
      /*grad=*/true);
  if (!status.ok()) return status;
  CountAll(model);
  model.directory = directory;
  GH_ASSIGN_OR_RETURN(model.fingerprint, checkpoint.Fingerprint(Essentials(model.config)));
  return model;
}

}  // namespace gatehouse
