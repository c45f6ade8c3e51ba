#include "client/monitor/http_get.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gatehouse::client {
namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Slow() { return absl::DeadlineExceededError("no answer in time"); }
absl::Status Failed(int error) { return absl::UnavailableError(std::strerror(error)); }

// Waits until the socket is ready; false at the deadline.
bool WaitFor(int fd, short events, absl::Time deadline) {
  pollfd wait{fd, events, 0};
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)));
    if (left <= 0) return false;
    const int ready = poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the next call says what is wrong
  }
}

absl::StatusOr<Socket> ConnectTo(const addrinfo& peer, absl::Time deadline) {
  Socket socket(::socket(peer.ai_family, peer.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, peer.ai_protocol));
  if (socket.fd() < 0) return Failed(errno);
  if (connect(socket.fd(), peer.ai_addr, peer.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return Failed(errno);
  if (!WaitFor(socket.fd(), POLLOUT, deadline)) return Slow();
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return Failed(error);
  return socket;
}

absl::StatusOr<Socket> Connect(const HttpAddress& address, absl::Time deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (error != 0) return absl::NotFoundError(absl::StrCat("cannot resolve ", address.host, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> peers(found, freeaddrinfo);
  absl::Status last = absl::NotFoundError(absl::StrCat(address.host, " has no address"));
  for (const addrinfo* peer = found; peer != nullptr; peer = peer->ai_next) {
    auto socket = ConnectTo(*peer, deadline);
    if (socket.ok()) return socket;
    last = socket.status();
  }
  return last;
}

absl::Status SendAll(const Socket& socket, std::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Failed(errno);
    } else if (!WaitFor(socket.fd(), POLLOUT, deadline)) {
      return Slow();
    }
  }
  return absl::OkStatus();
}

// Reads until the peer closes; `received` has what came, also where that fails.
absl::Status ReceiveAll(const Socket& socket, size_t most, absl::Time deadline, std::string& received) {
  char buffer[1 << 14];
  while (true) {
    const ssize_t count = recv(socket.fd(), buffer, sizeof(buffer), 0);
    if (count == 0) return absl::OkStatus();
    if (count > 0) {
      received.append(buffer, static_cast<size_t>(count));
      if (received.size() > most)
        return absl::ResourceExhaustedError(absl::StrCat("the answer is over ", most, " bytes"));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Failed(errno);
    } else if (!WaitFor(socket.fd(), POLLIN, deadline)) {
      return Slow();
    }
  }
}

absl::Status Exchange(const HttpAddress& address, const std::string& path, const HttpOptions& options,
                      std::string& received) {
  const absl::Time deadline = absl::Now() + options.timeout;
  const auto socket = Connect(address, deadline);
  if (!socket.ok()) return socket.status();
  // HTTP/1.0: the answer comes in one piece and ends with the connection.
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address.HostAndPort(), "\r\nAccept: text/plain\r\n\r\n");
  if (absl::Status status = SendAll(*socket, request, deadline); !status.ok()) return status;
  return ReceiveAll(*socket, options.most_bytes, deadline, received);
}

// The length that the headers promise; -1 for none.
int64_t PromisedLength(std::string_view headers) {
  constexpr std::string_view kName = "content-length:";
  while (!headers.empty()) {
    const size_t end = std::min(headers.find("\r\n"), headers.size());
    const std::string_view line = headers.substr(0, end);
    int64_t length = 0;
    if (absl::StartsWithIgnoreCase(absl::string_view(line.data(), line.size()), kName.data()) &&
        absl::SimpleAtoi(std::string(line.substr(kName.size())), &length)) {
      return length;
    }
    headers.remove_prefix(std::min(end + 2, headers.size()));
  }
  return -1;
}

}  // namespace

absl::StatusOr<HttpAddress> HttpAddress::Parse(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  HttpAddress address;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) address.path = rest.substr(slash);
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (colon == std::string_view::npos || colon == 0 || !absl::SimpleAtoi(std::string(rest.substr(colon + 1)), &port) ||
      port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT, with a port in [1, 65535]"));
  }
  address.port = std::to_string(port);
  rest = rest.substr(0, colon);
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  const bool strange =
      std::any_of(rest.begin(), rest.end(), [](unsigned char c) { return c <= ' ' || c == 0x7F; }) ||
      std::any_of(address.path.begin(), address.path.end(), [](unsigned char c) { return c <= ' ' || c == 0x7F; });
  if (strange) return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT"));
  address.host = rest;
  return address;
}

std::string HttpAddress::HostAndPort() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::Status TryConnect(const HttpAddress& address, absl::Duration timeout) {
  return Connect(address, absl::Now() + timeout).status();
}

absl::StatusOr<std::string> RawHttpExchange(const HttpAddress& address, const std::string& path,
                                            const HttpOptions& options) {
  std::string received;
  const absl::Status status = Exchange(address, path, options, received);
  if (!status.ok() && received.empty()) return status;
  return received;
}

absl::StatusOr<std::string> HttpGet(const HttpAddress& address, const std::string& path, const HttpOptions& options) {
  std::string received;
  if (absl::Status status = Exchange(address, path, options, received); !status.ok()) return status;
  const size_t end = received.find("\r\n\r\n");
  int code = 0;
  if (!received.starts_with("HTTP/1.") || end == std::string::npos ||
      !absl::SimpleAtoi(received.substr(std::min<size_t>(9, received.size()), 3), &code)) {
    return absl::UnavailableError("what answers there speaks no HTTP");
  }
  if (code != 200) return absl::UnavailableError(absl::StrCat("HTTP status ", code));
  const int64_t promised = PromisedLength(std::string_view(received).substr(0, end + 2));
  std::string body = received.substr(end + 4);
  if (promised > static_cast<int64_t>(body.size())) return absl::UnavailableError("the answer was cut short");
  return body;
}

}  // namespace gatehouse::client
