#ifndef GATEHOUSE_CLIENT_LOAD_LOAD_RUN_H_
#define GATEHOUSE_CLIENT_LOAD_LOAD_RUN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/load/workload.h"
#include "client/path_counts.h"

namespace gatehouse::client {

// What became of one request.  Times are seconds after the start of the load.
struct CallRecord {
  double intended = 0;  // when it was to be sent; in a closed loop, when it was
  double sent = 0;
  std::optional<double> first_token;
  std::vector<float> gaps;  // seconds between tokens
  double ended = 0;
  uint32_t prompt_tokens = 0;    // that were sent
  uint32_t received_tokens = 0;  // that came back, of calls that failed too
  bool admitted = false;         // the server began to answer
  absl::Status status;
  double queue_seconds = 0;  // the server's account, of calls that succeeded

  bool ok() const { return status.ok(); }
  // Seconds between its tokens in the mean, what others call the time per output token; nothing where it got
  // fewer than two.
  std::optional<double> time_per_token() const;
};

// Token × layer decisions of all calls that succeeded.
struct RoutingTotals {
  using Layer = PathCounts<uint64_t>;
  std::vector<Layer> layers;
  double work_saved = 0;  // share of the MLPs' multiplications, mean over the decisions
  uint64_t decisions = 0;

  Layer Sum() const { return SumOf(layers); }
};

struct LoadOptions {
  // Calls are spread over these in turn.
  std::vector<Client*> clients;
  // So many at once, each followed by another; 0: each at its time, however many then run.
  size_t concurrency = 0;
  // Nothing more is sent after this long.
  double duration = 0;  // seconds; 0: no such end
  // Each call's deadline, from when it was to be sent.
  absl::Duration call_timeout = absl::InfiniteDuration();
  std::string replica = {};  // as in CallOptions
  // Ends the load: calls that run are cancelled.  Not null.
  Canceller* canceller = nullptr;
  // The request of that number.
  std::function<v1::GenerateRequest(const PlannedCall& call, uint64_t number)> make_request;
  // Heard some times a second, on the calling thread: calls sent and ended, seconds since the start.
  std::function<void(size_t sent, size_t ended, double seconds)> on_progress = nullptr;
};

struct LoadResult {
  std::deque<CallRecord> calls;  // in the order of sending
  RoutingTotals routing;
  double seconds = 0;  // from the start to the last call's end
  bool interrupted = false;
};

// Sends the planned calls and waits for their ends.  Calls go out from the calling thread; what comes back
// is heard on gRPC's few threads, so that hundreds of streams need no threads of their own.
LoadResult RunLoad(const CallPlan& plan, const LoadOptions& options);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_LOAD_LOAD_RUN_H_
