#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_KERNELS_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_KERNELS_H_

#include <memory>

#include "server/engine/kernels/instruction_set.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/kernels/worker_pool.h"

namespace gatehouse {

// Kernels for the CPU with the inner loops of `set`, which must be available.  Large
// products of one sequence (RowGroup::kWide) go to the library.
std::unique_ptr<Kernels> MakeCpuKernels(const InstructionSet& set, at::ScalarType dtype,
                                        WorkerPool& pool = WorkerPool::Shared());

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_KERNELS_H_
