#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINABLE_MODEL_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINABLE_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/analysis/surrogate_fit.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/plain_forward.h"

namespace gatehouse {

// What decides how the optimizer treats a parameter.
enum class ParameterKind {
  kMatrix,  // weights and embeddings: decay
  kVector,  // biases and norms: no decay
  kGate,    // gates: a learning rate of their own, no decay
};

struct Parameter {
  std::string name;
  at::Tensor value;  // a float32 leaf; it learns iff it requires a gradient
  ParameterKind kind = ParameterKind::kMatrix;
};

// A float32 copy of a model's weights that learns, with surrogates and gates in the place
// of MLPs (methods A.6).  The weights it is made of are never touched; output and embedding
// stay one parameter where they are tied.  Used by one thread, outside inference mode.
class TrainableModel {
 public:
  enum class Mode {
    kFull,    // the layer's own MLP
    kLinear,  // its surrogate; its own MLP, frozen, at sinks
    kGated,   // both, a gate decides
  };
  // How gates decide.
  enum class Decision {
    kSoft,             // p ŷ + (1 − p) y
    kStraightThrough,  // linear iff p > 0.5; the gradient is the soft mixture's
    kHard,             // linear iff p > 0.5, for measuring: counts too
  };
  struct Layer {
    Mode mode = Mode::kFull;
    LinearWeights surrogate;  // undefined until the layer has one
    LinearWeights gate;       // [1, d_model], [1]; undefined until the layer has one
  };

  // `sinks` first positions of every sequence run in full everywhere.
  TrainableModel(const ModelWeights& model, int sinks);

  const ModelWeights& weights() const { return weights_; }
  const Layer& layer(int index) const { return layers_[index]; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  int sinks() const { return sinks_; }
  int gated_layers() const;

  // Puts a surrogate in the place of a layer's MLP; it learns, the MLP no longer does.
  void Linearize(int layer, const Surrogate& surrogate);
  // Puts a gate in front of a layer's MLP and `surrogate`; where that is null, of the
  // surrogate the layer has.  p is the same for all tokens at first.
  void AddGate(int layer, const Surrogate* surrogate, double p);
  // From here on only gates learn.
  void FreezeAllButGates();

  struct Result {
    at::Tensor cross_entropy;  // [batch, tokens − 1] float32
    // Σ (1 − p) over gated layers and the tokens that are no sinks: a scalar; undefined
    // without gated layers.
    at::Tensor full_mass;
    // Of each layer; zeros unless kHard.
    std::vector<int64_t> linear_tokens;
  };
  // ids: [batch, tokens] int64.
  Result Run(const at::Tensor& ids, Decision decision) const;

  // What takes the place of each MLP, as in Run with kHard.
  MlpFn HardMlp() const;
  // `written` with the layer's own MLP at sinks; both [batch, tokens, d_model] float32.
  at::Tensor WithSinksInFull(int layer, const at::Tensor& x, const at::Tensor& written) const;

 private:
  void Add(const std::string& name, at::Tensor& value, ParameterKind kind);
  void AddLinear(const std::string& name, LinearWeights& linear, ParameterKind kind);
  void AddNorm(const std::string& name, NormWeights& norm);
  void SetSurrogate(int layer, const Surrogate& surrogate);
  at::Tensor Mlp(int layer, const at::Tensor& x, Decision decision, Result* result) const;
  at::Tensor GatedMlp(int layer, const at::Tensor& x, Decision decision, Result* result) const;

  ModelWeights weights_;
  std::vector<Layer> layers_;
  std::vector<Parameter> parameters_;
  int sinks_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINABLE_MODEL_H_
