#ifndef GATEHOUSE_SERVER_BASE_LISTEN_ADDRESS_H_
#define GATEHOUSE_SERVER_BASE_LISTEN_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gatehouse {

// Where a server listens, as "HOST:PORT" states it; an IPv6 host stands in brackets.
struct ListenAddress {
  std::string host;
  uint16_t port = 0;  // 0: any free one

  std::string ToString() const;
};

// InvalidArgument, saying what is wrong, unless `text` is HOST:PORT.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// A listening TCP socket at `address` that no other process may share, or why there can
// be none ("cannot listen on 127.0.0.1:80: permission denied").
absl::StatusOr<int> OpenListener(const ListenAddress& address);

// The port a socket is bound to.
uint16_t BoundPort(int socket);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_LISTEN_ADDRESS_H_
