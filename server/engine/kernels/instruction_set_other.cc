#include "server/engine/kernels/instruction_set.h"

namespace gatehouse {

std::span<const InstructionSet> InstructionSets() {
  static const InstructionSet kSets[] = {{"generic", true, GenericCpuOps}};
  return kSets;
}

}  // namespace gatehouse
