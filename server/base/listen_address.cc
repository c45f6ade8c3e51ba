#include "server/base/listen_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr int kBacklog = 128;

absl::Status CannotListen(const ListenAddress& address, int error) {
  const std::string text = StrCat("cannot listen on ", address.ToString(), ": ");
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(StrCat(text, "address in use"));
    case EACCES:
      return absl::PermissionDeniedError(StrCat(text, "permission denied"));
    default:
      return absl::UnavailableError(StrCat(text, std::strerror(error)));
  }
}

}  // namespace

std::string ListenAddress::ToString() const {
  return host.find(':') == std::string::npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return absl::InvalidArgumentError(StrCat("'", text, "' is not HOST:PORT"));
  ListenAddress address;
  address.host = text.substr(0, colon);
  const bool bracketed = address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
  if (bracketed) {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return absl::InvalidArgumentError(StrCat("'", text, "' is not HOST:PORT: an IPv6 host stands in brackets"));
  }
  if (address.host.empty()) {
    return absl::InvalidArgumentError(StrCat("'", text, "' names no host: 0.0.0.0 means every interface"));
  }
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || rest != end) {
    return absl::InvalidArgumentError(StrCat("'", text, "' has no port in [0, 65535]"));
  }
  return address;
}

absl::StatusOr<int> OpenListener(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = StrCat(address.port);
  if (const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(StrCat("cannot listen on ", address.ToString(), ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  if (fd < 0) return CannotListen(address, errno);
  const int yes = 1;
  // A port in TIME_WAIT can be taken again at once; one that is listened on cannot.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    return CannotListen(address, error);
  }
  return fd;
}

uint16_t BoundPort(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace gatehouse
