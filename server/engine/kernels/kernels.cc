#include "server/engine/kernels/kernels.h"

#include <string>

#include "server/base/strings.h"
#include "server/engine/kernels/cpu_kernels.h"
#include "server/engine/kernels/instruction_set.h"

namespace gatehouse {
namespace {

std::string KnownNames() {
  std::string names = "auto, portable";
  for (const InstructionSet& set : InstructionSets()) names += StrCat(", ", set.name);
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Kernels>> MakeKernels(std::string_view name, at::Device device, at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    return absl::InvalidArgumentError("dtype must be float32 or bfloat16");
  }
  if (name == "portable" || (name == "auto" && !device.is_cpu())) return MakePortableKernels(device, dtype);
  for (const InstructionSet& set : InstructionSets()) {
    if (name != set.name && !(name == "auto" && set.available)) continue;
    if (!device.is_cpu()) {
      return absl::InvalidArgumentError(StrCat("kernels: \"", name, "\" are for the CPU, not for ", device.str()));
    }
    if (!set.available) {
      return absl::InvalidArgumentError(StrCat("kernels: this CPU has no \"", name, "\""));
    }
    return MakeCpuKernels(set, dtype);
  }
  return absl::InvalidArgumentError(StrCat("kernels: unknown name \"", name, "\"; known are ", KnownNames()));
}

}  // namespace gatehouse
