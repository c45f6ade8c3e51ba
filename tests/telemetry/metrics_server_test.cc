#include "server/telemetry/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "server/base/strings.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// What the server answers to these bytes.
std::string Ask(int port, const std::string& request) {
  const int fd = Connect(port);
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string reply;
  char buffer[4096];
  for (ssize_t got; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;) reply.append(buffer, static_cast<size_t>(got));
  close(fd);
  return reply;
}

std::unique_ptr<MetricsServer> Start(std::string page = "a 1\n") {
  auto server = MetricsServer::Start("127.0.0.1:0", [page = std::move(page)] { return page; });
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(MetricsServer, ServesThePageAtMetrics) {
  const auto server = Start();
  const std::string reply = Ask(server->port(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\na 1\n"));
  EXPECT_THAT(Ask(server->port(), "GET /metrics?x=1 HTTP/1.0\r\n\r\n"), EndsWith("a 1\n"));
  EXPECT_THAT(Ask(server->port(), "HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST(MetricsServer, ServesALargePageWhole) {
  const std::string page(10'000'000, 'x');
  const auto server = Start(page);
  const std::string reply = Ask(server->port(), "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(reply.size() - reply.find("\r\n\r\n") - 4, page.size());
}

TEST(MetricsServer, AnswersWhatItDoesNotServe) {
  const auto server = Start();
  EXPECT_THAT(Ask(server->port(), "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(server->port(), "GET /metricsx HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(server->port(), "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask(server->port(), "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask(server->port(), std::string(9000, 'x')), StartsWith("HTTP/1.1 431"));
}

TEST(MetricsServer, ClientsThatSayNothingHoldUpNobody) {
  const auto server = Start();
  std::vector<int> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect(server->port()));
  EXPECT_EQ(send(silent.front(), "GET /met", 8, MSG_NOSIGNAL), 8);
  EXPECT_THAT(Ask(server->port(), "GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("a 1\n"));
  for (const int fd : silent) close(fd);
  EXPECT_THAT(Ask(server->port(), "GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("a 1\n"));
}

TEST(MetricsServer, SaysThatItsPortIsInUse) {
  const auto server = Start();
  const std::string address = StrCat("127.0.0.1:", server->port());
  EXPECT_THAT(MetricsServer::Start(address, [] { return std::string(); }),
              StatusIs(absl::StatusCode::kAlreadyExists, StrCat("cannot listen on ", address, ": address in use")));
  EXPECT_THAT(MetricsServer::Start("localhost", [] { return std::string(); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")));
}

TEST(MetricsServer, FreesItsPort) {
  auto server = Start();
  const std::string address = StrCat("127.0.0.1:", server->port());
  (void)Ask(server->port(), "GET /metrics HTTP/1.1\r\n\r\n");
  server.reset();
  EXPECT_TRUE(MetricsServer::Start(address, [] { return std::string(); }).ok());
}

}  // namespace
}  // namespace gatehouse::testing
