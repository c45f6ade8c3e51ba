#include "server/page/host_check.h"

#include <gtest/gtest.h>

namespace gatehouse {
namespace {

TEST(PageListen, APortAloneIsOnTheLoopback) {
  for (const char* text : {"8090", ":8090", "127.0.0.1:8090"}) {
    const auto address = ParsePageListen(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->ToString(), "127.0.0.1:8090") << text;
  }
  EXPECT_EQ(ParsePageListen("0.0.0.0:1")->ToString(), "0.0.0.0:1");
  EXPECT_EQ(ParsePageListen("[::1]:1")->ToString(), "[::1]:1");
  for (const char* text : {"", ":", "x", "8090x", "99999", "host:"}) EXPECT_FALSE(ParsePageListen(text).ok()) << text;
}

TEST(HostCheck, TakesTheServersOwnNamesAlone) {
  const HostCheck check(*ParsePageListen("gpu-box:8090"));
  for (const char* host : {"localhost", "LocalHost:8090", "127.0.0.1:8090", "127.0.0.1:9999", "10.1.2.3", "[::1]:8090",
                           "gpu-box", "GPU-box:80"}) {
    EXPECT_TRUE(check.CheckHost(host).ok()) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example:8090", "127.0.0.1.evil.example", "localhost:x",
                           "[::1", "[::1]x", "[evil.example]:1", ":8090", "127.1:8090"}) {
    EXPECT_EQ(check.CheckHost(host).code(), absl::StatusCode::kPermissionDenied) << host;
  }
}

TEST(SameOrigin, IsThePagesOwn) {
  EXPECT_TRUE(CheckSameOrigin("localhost:8090", "", "").ok());
  EXPECT_TRUE(CheckSameOrigin("localhost:8090", "http://localhost:8090", "same-origin").ok());
  EXPECT_TRUE(CheckSameOrigin("gatehouse.example", "https://gatehouse.example", "").ok());
  for (const char* origin : {"null", "http://evil.example", "http://localhost:8091",
                             "http://localhost:8090.evil.example", "file://", "ftp://localhost:8090"}) {
    EXPECT_EQ(CheckSameOrigin("localhost:8090", origin, "").code(), absl::StatusCode::kPermissionDenied) << origin;
  }
  for (const char* site : {"cross-site", "same-site", "x"}) {
    EXPECT_EQ(CheckSameOrigin("localhost:8090", "", site).code(), absl::StatusCode::kPermissionDenied) << site;
  }
}

}  // namespace
}  // namespace gatehouse
