#include "server/engine/torch_boundary.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TorchBoundary, PassesAStatusThrough) {
  EXPECT_TRUE(AtTorchBoundary([] { return absl::OkStatus(); }).ok());
  EXPECT_THAT(AtTorchBoundary([] { return absl::NotFoundError("a tensor"); }),
              StatusIs(absl::StatusCode::kNotFound, "a tensor"));
}

TEST(TorchBoundary, CallsAFailedAllocationOutOfMemory) {
  EXPECT_THAT(AtTorchBoundary([] {
                at::empty({int64_t{1} << 50}, at::kFloat);
                return absl::OkStatus();
              }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("out of memory")));
  EXPECT_THAT(AtTorchBoundary([]() -> absl::Status { throw std::bad_alloc(); }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("out of memory")));
}

TEST(TorchBoundary, TurnsAnyOtherExceptionIntoOneLineOfInternal) {
  EXPECT_THAT(AtTorchBoundary([]() -> absl::Status { TORCH_CHECK(false, "two\nlines"); }),
              StatusIs(absl::StatusCode::kInternal, Not(HasSubstr("lines"))));
  EXPECT_THAT(AtTorchBoundary([]() -> absl::Status { throw std::runtime_error("broken"); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
}

}  // namespace
}  // namespace gatehouse
