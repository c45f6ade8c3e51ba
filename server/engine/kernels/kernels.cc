#include "server/engine/kernels/kernels.h"

#include "server/base/strings.h"

namespace gatehouse {

absl::StatusOr<std::unique_ptr<Kernels>> MakeKernels(std::string_view name, at::Device device, at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    return absl::InvalidArgumentError("dtype must be float32 or bfloat16");
  }
  if (name == "auto" || name == "portable") return MakePortableKernels(device, dtype);
  return absl::InvalidArgumentError(StrCat("kernels: unknown name \"", name, "\""));
}

}  // namespace gatehouse
