#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_KERNELS_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_KERNELS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/model/weights.h"
#include "server/engine/step.h"

namespace gatehouse {

// How a product's rows came together, which decides what may compute it.
enum class RowGroup {
  // Few rows, of any mix of sequences.  Each row's bits are the same whatever rows are
  // beside it.
  kSkinny,
  // A chunk of one sequence, always cut at the same positions: a library product may
  // serve, whose bits depend on the number of rows.
  kWide,
};

// The new positions of one sequence within a group of rows, and where its keys and
// values are.
struct Segment {
  int first_row = 0;
  int rows = 0;
  int first_position = 0;          // of the sequence; positions before it are cached
  std::span<const int32_t> pages;  // page table: position p is in pages[p / page_tokens]
};

// Keys and values of one layer, in pages.
struct KvLayer {
  at::Tensor keys;    // [pages, kv_heads, page_tokens, head_dim], the serving dtype
  at::Tensor values;  // the same
};

// The operations a decoder step is made of, for one device: the one seam between the
// engine and matrix code.  Activations are float32 [rows, width], contiguous, on the
// device; weights are in the serving dtype, and products round their inputs to it and
// accumulate in float32.  Chosen at load.  Stateless but for scratch memory: one thread
// at a time.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual std::string_view name() const = 0;

  // x [rows, in] → [rows, out].
  virtual at::Tensor Linear(const at::Tensor& x, const LinearWeights& weights, RowGroup group) = 0;

  // LayerNorm or RMSNorm.  x [rows, d_model] → the same shape.
  virtual at::Tensor Norm(const at::Tensor& x, const NormWeights& weights, NormKind kind, double eps) = 0;

  // In place: x = act(x) [rows, d_mlp].
  virtual void Activate(at::Tensor& x, Activation activation) = 0;

  // x [rows, 2 · d_mlp] (gate, up) → act(gate) · up [rows, d_mlp].  Where `gate_out` is
  // not null it receives act(gate).
  virtual at::Tensor GatedActivate(const at::Tensor& x, Activation activation, at::Tensor* gate_out) = 0;

  // Rows of `table` [n, width] (serving dtype) by index → [ids.size(), width] float32.
  virtual at::Tensor Embed(const at::Tensor& table, std::span<const int32_t> ids) = 0;

  // Turns queries and keys by their positions (see ModelConfig::rotary_dims), writes
  // keys and values to their pages, and attends, each position to itself and all before
  // it.  qkv [rows, (heads + 2 kv_heads) · head_dim], overwritten → [rows, heads ·
  // head_dim].  Segments cover all rows, in order.
  virtual at::Tensor Attention(at::Tensor& qkv, const ModelConfig& config, int layer, KvLayer& kv,
                               std::span<const Segment> segments, RowGroup group) = 0;

  // x [rows, d] · w [d] + bias → host floats [rows]: a gate's logits.
  virtual std::vector<float> Dot(const at::Tensor& x, const at::Tensor& w, float bias) = 0;

  // ‖row‖₂ of x, or of x − y where y is given → host floats [rows].
  virtual std::vector<float> RowNorms(const at::Tensor& x, const at::Tensor* y = nullptr) = 0;

  // Draws a token from one row of logits [vocab] float32; `state` observes it.  Internal
  // on NaN.
  virtual absl::StatusOr<SampledToken> Sample(const at::Tensor& logits, SamplingState& state, int top) = 0;

  // Log-probabilities of `targets` under rows of logits [rows, vocab]; NaN for a target
  // of −1.  `top`: most likely ids of each row that has a target.
  struct TargetLogprobs {
    std::vector<float> logprobs;
    std::vector<std::vector<TokenLogprob>> top;
  };
  virtual absl::StatusOr<TargetLogprobs> Logprobs(const at::Tensor& logits, std::span<const int32_t> targets,
                                                  int top) = 0;
};

// LibTorch's own operators, on any device: the reference of the others and what a GPU
// runs.
std::unique_ptr<Kernels> MakePortableKernels(at::Device device, at::ScalarType dtype);

// The kernels for a device.  `name`: "auto", or one to pin; InvalidArgument for an
// unknown name or one this machine cannot run.
absl::StatusOr<std::unique_ptr<Kernels>> MakeKernels(std::string_view name, at::Device device, at::ScalarType dtype);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_KERNELS_H_
