#ifndef GATEHOUSE_SERVER_PAGE_HOST_CHECK_H_
#define GATEHOUSE_SERVER_PAGE_HOST_CHECK_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/listen_address.h"

namespace gatehouse {

// Where the live page listens: HOST:PORT as ParseListenAddress reads it, or a port alone
// ("8090", ":8090"), which means the loopback.
absl::StatusOr<ListenAddress> ParsePageListen(const std::string& text);

// Tells the page's own visitors from other web pages in their browsers: what such a page
// sends has an Origin of its own, and where its name was made to point here (DNS
// rebinding) that name as the Host.  Immutable; any thread may call it.
class HostCheck {
 public:
  explicit HostCheck(const ListenAddress& address);

  // PermissionDenied unless `host`, a Host header, names this server: by an address, as
  // localhost, as --page-listen or the machine names it.  The port may be another, as behind
  // a forwarded port.
  absl::Status CheckHost(std::string_view host) const;

 private:
  const std::string listen_host_, machine_;
};

// PermissionDenied where the headers of a request to `host` say that another site's page
// made it.  Both are empty where the client is no browser.
absl::Status CheckSameOrigin(std::string_view host, std::string_view origin, std::string_view fetch_site);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_PAGE_HOST_CHECK_H_
