#include "server/engine/kernels/instruction_set.h"

namespace gatehouse {
namespace {

bool HasAvx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16") != 0; }

}  // namespace

std::span<const InstructionSet> InstructionSets() {
  static const InstructionSet kSets[] = {
      {"avx512_bf16", HasAvx512Bf16(), Avx512Bf16CpuOps},
      {"avx512", HasAvx512(), Avx512CpuOps},
      {"avx2", HasAvx2(), Avx2CpuOps},
      {"generic", true, GenericCpuOps},
  };
  return kSets;
}

}  // namespace gatehouse
