#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_INFO_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_INFO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gatehouse {

// What a loaded model is.  An immutable value.
struct ModelInfo {
  std::string architecture;  // "gpt2", "gpt_neox" or "llama"
  int layers = 0;
  int d_model = 0;
  int d_mlp = 0;
  bool gated_mlp = false;  // SwiGLU: three matrices, not two
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;  // rows of the output projection; may exceed the tokenizer's
  int context = 0;     // most positions a sequence can have
  int64_t parameters = 0;
  int64_t weight_bytes = 0;  // as held in memory
  // What ends a text: generation_config.json's eos_token_id where given, else
  // config.json's.
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  // "sha256:…" over configuration, tensor names, shapes and sampled bytes of every
  // tensor of the files: the same for any serving dtype and device, and cheap.
  std::string fingerprint;
  std::string dtype;    // "float32" or "bfloat16"
  std::string device;   // "cpu" or "cuda"
  std::string kernels;  // such as "avx512_bf16"
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_INFO_H_
