#ifndef GATEHOUSE_TESTS_ENGINE_KERNELS_KERNEL_SETS_H_
#define GATEHOUSE_TESTS_ENGINE_KERNELS_KERNEL_SETS_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "server/engine/kernels/cpu_kernels.h"
#include "server/engine/kernels/instruction_set.h"
#include "server/engine/kernels/kernels.h"

namespace gatehouse::testing {

// The names of all kernels that this machine can run on the CPU.
inline std::vector<std::string> AvailableKernels() {
  std::vector<std::string> names = {"portable"};
  for (const InstructionSet& set : InstructionSets()) {
    if (set.available) names.emplace_back(set.name);
  }
  return names;
}

inline std::unique_ptr<Kernels> Make(const std::string& name, at::ScalarType dtype = at::kFloat) {
  return MakeKernels(name, at::kCPU, dtype).value();
}

// A test of each kernels in each dtype.
class KernelsTest : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  KernelsTest() : dtype_(std::get<1>(GetParam())), kernels_(Make(std::get<0>(GetParam()), dtype_)) {}

  const at::ScalarType dtype_;
  const std::unique_ptr<Kernels> kernels_;
};

inline std::string KernelsTestName(const ::testing::TestParamInfo<KernelsTest::ParamType>& info) {
  return std::get<0>(info.param) + (std::get<1>(info.param) == at::kFloat ? "_float32" : "_bfloat16");
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_KERNELS_KERNEL_SETS_H_
