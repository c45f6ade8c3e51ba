#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_WEIGHTS_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/model/config.h"

namespace gatehouse {

// y = x weightᵀ + bias.
struct LinearWeights {
  at::Tensor weight;  // [out, in], contiguous, the serving dtype
  at::Tensor bias;    // [out], float32; undefined where there is none
};

struct NormWeights {
  at::Tensor weight;  // [d_model], float32
  at::Tensor bias;    // [d_model], float32; undefined for RMSNorm
};

struct LayerWeights {
  NormWeights attention_norm;
  NormWeights mlp_norm;
  // Rows: all query heads, then all key heads, then all value heads, whatever the
  // checkpoint's own order.  [(heads + 2 kv_heads) · head_dim, d_model]
  LinearWeights qkv;
  LinearWeights attention_out;  // [d_model, heads · head_dim]
  // [d_mlp, d_model]; for a gated MLP the gate's rows, then the up rows:
  // [2 · d_mlp, d_model].
  LinearWeights mlp_in;
  LinearWeights mlp_out;  // [d_model, d_mlp]
};

// A model's weights on their device, immutable after loading and read from any
// thread.
struct ModelWeights {
  ModelConfig config;
  at::Tensor token_embedding;     // [vocab, d_model], the serving dtype
  at::Tensor position_embedding;  // [context, d_model], the serving dtype; undefined unless GPT-2
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  LinearWeights output;     // [vocab, d_model]; shares token_embedding's memory where tied
  std::string directory;    // loaded from it
  std::string fingerprint;  // see ModelInfo
  int64_t parameters = 0;
  int64_t bytes = 0;
};

// Loads a model directory: config.json and single or sharded safetensors, which are checked,
// and copied tensor by tensor into the serving dtype on the device.
absl::StatusOr<ModelWeights> LoadModelWeights(const std::string& directory, at::ScalarType dtype, at::Device device);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_WEIGHTS_H_
