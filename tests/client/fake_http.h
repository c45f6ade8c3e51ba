#ifndef GATEHOUSE_TESTS_CLIENT_FAKE_HTTP_H_
#define GATEHOUSE_TESTS_CLIENT_FAKE_HTTP_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace gatehouse::testing {

// Answers every connection to a free port of the loopback, one after another, with the bytes that `answer`
// makes, once it has heard something; then closes.
class FakeHttp {
 public:
  explicit FakeHttp(std::function<std::string()> answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(listener_, reinterpret_cast<const sockaddr*>(&address), size);
    listen(listener_, 16);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeHttp() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  FakeHttp(const FakeHttp&) = delete;
  FakeHttp& operator=(const FakeHttp&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int served() const { return served_; }

  // A page as a server of HTTP sends it.
  static std::string Page(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }

 private:
  void Serve() {
    while (true) {
      const int peer = accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      char request[4096];
      if (recv(peer, request, sizeof(request), 0) > 0) {
        const std::string bytes = answer_();
        for (size_t sent = 0; sent < bytes.size();) {
          const ssize_t count = send(peer, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
          if (count <= 0) break;
          sent += static_cast<size_t>(count);
        }
      }
      close(peer);
      ++served_;
    }
  }

  const std::function<std::string()> answer_;
  int listener_ = -1, port_ = 0;
  std::atomic<int> served_ = 0;
  std::thread thread_;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_CLIENT_FAKE_HTTP_H_
