#ifndef GATEHOUSE_SERVER_TELEMETRY_METRICS_SERVER_H_
#define GATEHOUSE_SERVER_TELEMETRY_METRICS_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace gatehouse {

// Serves one page at http://LISTEN/metrics, from one thread that no slow client can hold
// up.  prometheus-cpp's own Exposer is not used: it adds a summary about itself that
// shows NaN whenever it was not scraped for a minute.  Owned by main; thread-safe.
class MetricsServer {
 public:
  // `listen` is HOST:PORT; port 0 takes a free one.  `page` is called by the server's
  // thread at each scrape.  Errors of OpenListener.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              std::function<std::string()> page);
  virtual ~MetricsServer() = default;

  virtual int port() const = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TELEMETRY_METRICS_SERVER_H_
