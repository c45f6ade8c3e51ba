#include "server/telemetry/metrics_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/clock.h"
#include "server/base/listen_address.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxRequestBytes = 8 << 10;
constexpr size_t kMaxConnections = 32;
constexpr double kConnectionSeconds = 10;

// One request and its answer, after which the connection is closed.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd), deadline_(MonotonicSeconds() + kConnectionSeconds) {}
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd() const { return fd_; }
  short wanted_events() const { return reply_.empty() ? POLLIN : POLLOUT; }
  bool expired(double now) const { return now >= deadline_; }

  // Goes on as far as the socket lets it; false when the connection is over.
  bool Advance(const std::function<std::string()>& page);

 private:
  bool Read(const std::function<std::string()>& page);
  bool Write();

  const int fd_;
  const double deadline_;
  std::string request_;
  std::string reply_;
  size_t sent_ = 0;
};

std::string Reply(std::string_view status, std::string_view body, bool with_body) {
  return StrCat("HTTP/1.1 ", status,
                "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: close\r\nContent-Length: ",
                body.size(), "\r\n\r\n", with_body ? body : "");
}

std::string Answer(std::string_view request, const std::function<std::string()>& page) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return Reply("400 Bad Request", "not an HTTP request\n", true);
  const std::string_view method = line.substr(0, space);
  const std::string_view target = line.substr(space + 1);
  const std::string_view path = target.substr(0, target.find_first_of("? "));
  const bool with_body = method != "HEAD";
  if (method != "GET" && method != "HEAD") return Reply("405 Method Not Allowed", "only GET and HEAD\n", true);
  if (path != "/metrics") return Reply("404 Not Found", "the page is at /metrics\n", with_body);
  return Reply("200 OK", page(), with_body);
}

bool Connection::Advance(const std::function<std::string()>& page) { return reply_.empty() ? Read(page) : Write(); }

bool Connection::Read(const std::function<std::string()>& page) {
  char buffer[4096];
  const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  request_.append(buffer, static_cast<size_t>(got));
  if (request_.find("\r\n\r\n") != std::string::npos) {
    reply_ = Answer(request_, page);
    return Write();
  }
  if (request_.size() <= kMaxRequestBytes) return true;
  reply_ = Reply("431 Request Header Fields Too Large", "the request is too long\n", true);
  return Write();
}

bool Connection::Write() {
  const ssize_t wrote = send(fd_, reply_.data() + sent_, reply_.size() - sent_, MSG_NOSIGNAL);
  if (wrote < 0) return errno == EAGAIN || errno == EINTR;
  sent_ += static_cast<size_t>(wrote);
  if (sent_ < reply_.size()) return true;
  shutdown(fd_, SHUT_WR);
  return false;
}

class Server final : public MetricsServer {
 public:
  Server(int listener, std::function<std::string()> page)
      : listener_(listener), wake_(eventfd(0, EFD_CLOEXEC)), port_(BoundPort(listener)), page_(std::move(page)) {
    fcntl(listener_, F_SETFL, fcntl(listener_, F_GETFL) | O_NONBLOCK);
    thread_ = std::thread([this] { Loop(); });
  }
  ~Server() override {
    eventfd_write(wake_, 1);
    thread_.join();
    close(listener_);
    close(wake_);
  }

  int port() const override { return port_; }

 private:
  void Loop();
  void Accept();
  // Goes on with the connections that `events` (in their order) say can.
  void Advance(const pollfd* events);

  const int listener_;
  const int wake_;
  const int port_;
  const std::function<std::string()> page_;
  std::list<Connection> connections_;  // of the thread
  std::thread thread_;
};

void Server::Loop() {
  while (true) {
    std::vector<pollfd> events = {{wake_, POLLIN, 0}};
    for (const Connection& connection : connections_) {
      events.push_back({connection.fd(), connection.wanted_events(), 0});
    }
    // More wait in the kernel's backlog.
    if (connections_.size() < kMaxConnections) events.push_back({listener_, POLLIN, 0});
    const int timeout_ms = connections_.empty() ? -1 : 1000;
    if (poll(events.data(), events.size(), timeout_ms) < 0 && errno != EINTR) return;
    if (events.front().revents != 0) return;
    const bool acceptable = events.back().fd == listener_ && events.back().revents != 0;
    Advance(events.data() + 1);
    if (acceptable) Accept();
  }
}

void Server::Accept() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) connections_.emplace_back(fd);
}

void Server::Advance(const pollfd* events) {
  const double now = MonotonicSeconds();
  for (auto connection = connections_.begin(); connection != connections_.end(); ++events) {
    const bool over = events->revents != 0 && !connection->Advance(page_);
    connection = over || connection->expired(now) ? connections_.erase(connection) : std::next(connection);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                                    std::function<std::string()> page) {
  GH_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(listen));
  GH_ASSIGN_OR_RETURN(const int listener, OpenListener(address));
  return std::make_unique<Server>(listener, std::move(page));
}

}  // namespace gatehouse
