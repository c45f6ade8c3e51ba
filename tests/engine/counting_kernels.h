#ifndef GATEHOUSE_TESTS_ENGINE_COUNTING_KERNELS_H_
#define GATEHOUSE_TESTS_ENGINE_COUNTING_KERNELS_H_

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "server/engine/kernels/kernels.h"

namespace gatehouse::testing {

// What a decoder asked of its kernels.
struct KernelCalls {
  std::map<const void*, int64_t> linear_rows;  // by the weight's memory
  int attentions = 0;
  int64_t dot_rows = 0;                // gates asked
  std::function<void()> on_attention;  // called before each, where set

  int64_t RowsThrough(const LinearWeights& weights) const {
    const auto found = linear_rows.find(weights.weight.const_data_ptr());
    return found == linear_rows.end() ? 0 : found->second;
  }
};

// Kernels that count.  `calls` outlives them.
class CountingKernels final : public Kernels {
 public:
  CountingKernels(std::unique_ptr<Kernels> inner, KernelCalls& calls) : inner_(std::move(inner)), calls_(calls) {}

  std::string_view name() const override { return inner_->name(); }
  at::Tensor Linear(const at::Tensor& x, const LinearWeights& weights, RowGroup group) override {
    calls_.linear_rows[weights.weight.const_data_ptr()] += x.size(0);
    return inner_->Linear(x, weights, group);
  }
  at::Tensor Norm(const at::Tensor& x, const NormWeights& weights, NormKind kind, double eps) override {
    return inner_->Norm(x, weights, kind, eps);
  }
  void Activate(at::Tensor& x, Activation activation) override { inner_->Activate(x, activation); }
  at::Tensor GatedActivate(const at::Tensor& x, Activation activation, at::Tensor* gate_out) override {
    return inner_->GatedActivate(x, activation, gate_out);
  }
  at::Tensor Embed(const at::Tensor& table, std::span<const int32_t> ids) override { return inner_->Embed(table, ids); }
  at::Tensor Attention(at::Tensor& qkv, const ModelConfig& config, int layer, KvLayer& kv,
                       std::span<const Segment> segments, RowGroup group) override {
    ++calls_.attentions;
    if (calls_.on_attention) calls_.on_attention();
    return inner_->Attention(qkv, config, layer, kv, segments, group);
  }
  std::vector<float> Dot(const at::Tensor& x, const at::Tensor& w, float bias) override {
    calls_.dot_rows += x.size(0);
    return inner_->Dot(x, w, bias);
  }
  std::vector<float> RowNorms(const at::Tensor& x, const at::Tensor* y) override { return inner_->RowNorms(x, y); }
  absl::StatusOr<SampledToken> Sample(const at::Tensor& logits, SamplingState& state, int top) override {
    return inner_->Sample(logits, state, top);
  }
  absl::StatusOr<TargetLogprobs> Logprobs(const at::Tensor& logits, std::span<const int32_t> targets,
                                          int top) override {
    return inner_->Logprobs(logits, targets, top);
  }

 private:
  std::unique_ptr<Kernels> inner_;
  KernelCalls& calls_;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_COUNTING_KERNELS_H_
