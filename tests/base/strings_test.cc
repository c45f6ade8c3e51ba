#include "server/base/strings.h"

#include <gtest/gtest.h>

namespace gatehouse {
namespace {

TEST(StrCat, JoinsStandardViewsStringsAndNumbers) {
  EXPECT_EQ(StrCat(std::string_view("a"), std::string("b"), "c", 1, 2.5), "abc12.5");
  EXPECT_EQ(StrCat(std::string_view()), "");
}

TEST(Annotate, PutsThePrefixBeforeTheMessageAndKeepsTheCode) {
  const absl::Status status = Annotate(absl::NotFoundError("no file"), "model a");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "model a: no file");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "model a").ok());
}

}  // namespace
}  // namespace gatehouse
