#include "server/engine/model/library_product.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <vector>

namespace gatehouse {
namespace {

bool PrefersOneDnn() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") == 0;
#else
  return false;
#endif
}

bool NeedsGradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

// oneDNN's product of plain float32 tensors, which LibTorch has under a name of its own
// only, and without a derivative.  Nothing where this LibTorch has no such operator.
class OneDnnLinear {
 public:
  OneDnnLinear() {
    if (PrefersOneDnn()) op_ = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (op_.has_value() && op_->schema().arguments().size() != 6) op_.reset();
  }

  bool Serves(const at::Tensor& x, const LinearWeights& weights) const {
    if (!op_.has_value() || !x.is_cpu()) return false;
    const bool differentiated = NeedsGradient(x) || NeedsGradient(weights.weight) || NeedsGradient(weights.bias);
    return !(at::GradMode::is_enabled() && differentiated);
  }

  at::Tensor operator()(const at::Tensor& x, const LinearWeights& weights) const {
    std::vector<c10::IValue> stack = {x,
                                      weights.weight,
                                      weights.bias.defined() ? c10::IValue(weights.bias) : c10::IValue(),
                                      "none",
                                      c10::List<std::optional<at::Scalar>>(),
                                      c10::IValue()};
    op_->callBoxed(&stack);
    return stack[0].toTensor();
  }

 private:
  std::optional<c10::OperatorHandle> op_;
};

}  // namespace

at::Tensor LibraryProduct(const at::Tensor& x, const LinearWeights& weights) {
  static const OneDnnLinear* const kOneDnn = new OneDnnLinear();
  if (kOneDnn->Serves(x, weights)) return (*kOneDnn)(x, weights);
  return at::linear(x, weights.weight, weights.bias.defined() ? std::optional(weights.bias) : std::nullopt);
}

}  // namespace gatehouse
