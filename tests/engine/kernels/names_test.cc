#include <gmock/gmock.h>

#include "tests/engine/kernels/kernel_sets.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AvailableKernels;
using ::gatehouse::testing::StatusIs;
using ::testing::HasSubstr;

TEST(KernelNames, AutoTakesTheBestSetOfThisCpu) {
  const auto kernels = MakeKernels("auto", at::kCPU, at::kFloat);
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_EQ((*kernels)->name(), AvailableKernels()[1]);
}

TEST(KernelNames, EachAvailableSetCanBePinned) {
  for (const std::string& name : AvailableKernels()) {
    const auto kernels = MakeKernels(name, at::kCPU, at::kBFloat16);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    EXPECT_EQ((*kernels)->name(), name);
  }
}

TEST(KernelNames, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(MakeKernels("sse9", at::kCPU, at::kFloat).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"sse9\"; known are auto, portable")));
  EXPECT_THAT(MakeKernels("", at::kCPU, at::kFloat).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
}

TEST(KernelNames, ASetThisCpuLacksIsRefused) {
  bool found = false;
  for (const InstructionSet& set : InstructionSets()) {
    if (set.available) continue;
    found = true;
    EXPECT_THAT(MakeKernels(set.name, at::kCPU, at::kFloat).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(set.name))));
  }
  if (!found) GTEST_SKIP() << "this CPU has every instruction set there are kernels for";
}

TEST(KernelNames, CpuKernelsAreRefusedForAnotherDevice) {
  EXPECT_THAT(MakeKernels("generic", at::kCUDA, at::kFloat).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("for the CPU")));
}

TEST(KernelNames, OtherDtypesAreRefused) {
  EXPECT_THAT(MakeKernels("auto", at::kCPU, at::kHalf).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dtype")));
}

}  // namespace
}  // namespace gatehouse
