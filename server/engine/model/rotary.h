#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_ROTARY_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_ROTARY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/model/config.h"
#include "server/engine/model/json_object.h"

namespace gatehouse {

// The frequencies of a rotary embedding, as ModelConfig holds them.
struct RotaryFrequencies {
  int dims = 0;
  std::vector<float> inv_freq;  // [dims / 2]
};

// Reads the rotary embedding of a GPT-NeoX or Llama configuration, from either
// generation of keys: rope_parameters (transformers 5), or rope_theta, rope_scaling,
// rotary_pct and rotary_emb_base (before).  Scaling "linear" and "llama3" are
// known; any other kind or key is InvalidArgument, named.
absl::StatusOr<RotaryFrequencies> ReadRotary(const JsonObject& config, Architecture architecture, int head_dim,
                                             int context);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_ROTARY_H_
