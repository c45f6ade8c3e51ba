#include "server/base/digest.h"

#include <gtest/gtest.h>

#include <string>

namespace gatehouse {
namespace {

// The vectors of FIPS 180-4.
TEST(Sha256, EqualsThePublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
  Sha256 sha;
  sha.Update("a");
  sha.Update("");
  sha.Update("bc");
  EXPECT_EQ(sha.HexDigest(), Sha256Hex("abc"));
}

}  // namespace
}  // namespace gatehouse
