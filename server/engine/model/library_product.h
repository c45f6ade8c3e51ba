#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_LIBRARY_PRODUCT_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_LIBRARY_PRODUCT_H_

#include <ATen/core/Tensor.h>

#include "server/engine/model/weights.h"

namespace gatehouse {

// x wᵀ + b by the faster of the libraries that LibTorch brings: its default (MKL) is slow on
// processors of other makers than its own, where oneDNN serves.  x: [..., in] float32; w
// float32 → [..., out] float32.  Differentiable where something requires a gradient.
at::Tensor LibraryProduct(const at::Tensor& x, const LinearWeights& weights);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_LIBRARY_PRODUCT_H_
