#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_INSTRUCTION_SET_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_INSTRUCTION_SET_H_

#include <span>
#include <string_view>

#include "server/engine/kernels/cpu_ops.h"

namespace gatehouse {

// An instruction set the CPU kernels are compiled for.
struct InstructionSet {
  std::string_view name;
  bool available;  // on this machine
  const CpuOps& (*ops)();
};

// Best first; the last runs anywhere.
std::span<const InstructionSet> InstructionSets();

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_INSTRUCTION_SET_H_
