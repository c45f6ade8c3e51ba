#ifndef GATEHOUSE_CLIENT_MONITOR_HTTP_GET_H_
#define GATEHOUSE_CLIENT_MONITOR_HTTP_GET_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gatehouse::client {

struct HttpOptions {
  absl::Duration timeout = absl::Seconds(3);  // of the whole exchange
  size_t most_bytes = 16 << 20;               // of the answer
};

// Where to connect, from "HOST:PORT", "[IPv6]:PORT", with "http://" before it and a path behind or
// without.  InvalidArgument for what is none.
struct HttpAddress {
  std::string host, port;
  std::string path;  // empty, or begins with '/'

  static absl::StatusOr<HttpAddress> Parse(const std::string& text);
  std::string HostAndPort() const;
};

// Whether something takes connections there: NotFound for a name that does not resolve, Unavailable
// where the connection is refused or there is no way, DeadlineExceeded where nothing answers.
absl::Status TryConnect(const HttpAddress& address, absl::Duration timeout);

// Sends a plain HTTP request for `path` and returns the raw bytes that come back until the peer
// closes, whatever they are; fewer where the time ends first.  Fails as TryConnect does.
absl::StatusOr<std::string> RawHttpExchange(const HttpAddress& address, const std::string& path,
                                            const HttpOptions& options);

// The body of a page.  Fails as TryConnect does; Unavailable for an answer that is no HTTP, is cut short or has
// a status other than 200; ResourceExhausted for one that is too long.
absl::StatusOr<std::string> HttpGet(const HttpAddress& address, const std::string& path,
                                    const HttpOptions& options = {});

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_MONITOR_HTTP_GET_H_
