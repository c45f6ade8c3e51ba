#include "tests/page/http_exchange.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>

namespace gatehouse::testing {

HttpExchange::HttpExchange(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{60, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
}

void HttpExchange::Send(const std::string& bytes) const {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // refused before it was read
    sent += static_cast<size_t>(count);
  }
}

std::string HttpExchange::ReadAll() {
  return ReadUntil(std::string(1, '\0'));  // which no answer holds
}

std::string HttpExchange::ReadUntil(const std::string& text) {
  char bytes[4096];
  while (read_.find(text) == std::string::npos) {
    const ssize_t count = recv(socket_, bytes, sizeof(bytes), 0);
    if (count <= 0) break;
    read_.append(bytes, static_cast<size_t>(count));
  }
  return read_;
}

void HttpExchange::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

std::string TracePost(const std::string& body, const std::string& headers) {
  return "POST /trace HTTP/1.1\r\n" + headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

int StatusOf(const std::string& answer) { return answer.starts_with("HTTP/1.1 ") ? std::atoi(answer.c_str() + 9) : 0; }

std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

}  // namespace gatehouse::testing
