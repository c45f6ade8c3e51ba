#include "server/page/host_check.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

// "[::1]:80" → "::1", "localhost" → "localhost"; empty where it is no host.
std::string NameOf(std::string_view host) {
  const bool bracketed = host.starts_with('[');
  const size_t end = bracketed ? host.find(']') : host.find(':');
  if (bracketed && end == std::string_view::npos) return "";
  const std::string_view port = end == std::string_view::npos ? "" : host.substr(end + (bracketed ? 1 : 0));
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (!port.empty() && (port[0] != ':' || !std::all_of(port.begin() + 1, port.end(), is_digit))) return "";
  return Lower(host.substr(bracketed ? 1 : 0, end - (bracketed ? 1 : 0)));
}

bool IsAddress(const std::string& name) {
  in6_addr bytes;
  return inet_pton(AF_INET, name.c_str(), &bytes) == 1 || inet_pton(AF_INET6, name.c_str(), &bytes) == 1;
}

std::string MachineName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? Lower(name) : "";
}

}  // namespace

absl::StatusOr<ListenAddress> ParsePageListen(const std::string& text) {
  const std::string port = text.starts_with(':') ? text.substr(1) : text;
  const bool port_alone =
      !port.empty() && std::all_of(port.begin(), port.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  return ParseListenAddress(port_alone ? StrCat("127.0.0.1:", port) : text);
}

HostCheck::HostCheck(const ListenAddress& address) : listen_host_(Lower(address.host)), machine_(MachineName()) {}

absl::Status HostCheck::CheckHost(std::string_view host) const {
  const std::string name = NameOf(host);
  // Nobody else's name can be an address.
  if (!name.empty() && (name == "localhost" || name == listen_host_ || name == machine_ || IsAddress(name))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("the Host header names another server: use this one's address");
}

absl::Status CheckSameOrigin(std::string_view host, std::string_view origin, std::string_view fetch_site) {
  const bool same_site = fetch_site.empty() || fetch_site == "same-origin" || fetch_site == "none";
  const std::string mine = Lower(host), theirs = Lower(origin);
  if (same_site && (origin.empty() || theirs == StrCat("http://", mine) || theirs == StrCat("https://", mine))) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("another site's page may not ask for this");
}

}  // namespace gatehouse
