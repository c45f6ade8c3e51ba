#ifndef GATEHOUSE_CLIENT_CLIENT_H_
#define GATEHOUSE_CLIENT_CLIENT_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <mutex>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gatehouse/v1/analysis.pb.h"
#include "gatehouse/v1/generation.pb.h"
#include "gatehouse/v1/interventions.pb.h"
#include "gatehouse/v1/models.pb.h"
#include "gatehouse/v1/operations.pb.h"
#include "gatehouse/v1/reports.pb.h"
#include "gatehouse/v1/scoring.pb.h"

namespace grpc {
class Channel;
class ChannelCredentials;
class ClientContext;
}  // namespace grpc

// The client library of Gatehouse.  Requests and answers are the messages of
// proto/gatehouse/v1, which document every field; the library adds the channel, the
// streaming loops, retries, and readable errors.
//
//   auto client = gatehouse::client::Client::Create({.server = "127.0.0.1:50151"});
//   if (!client.ok()) return client.status();
//
//   gatehouse::v1::GenerateRequest request;
//   request.set_model("novella-gpt2-7m");
//   request.mutable_prompt()->set_text("The captain of the ship");
//   request.set_max_tokens(40);
//   request.mutable_gating()->set_mode(gatehouse::v1::GatingPolicy::MODE_GATED);
//
//   auto summary = (*client)->Generate(request, {.on_token = [](const auto& token) {
//     std::cout << token.text() << std::flush;
//     return true;  // false cancels the call
//   }});
//   if (!summary.ok()) return summary.status();
//   std::cout << summary->text() << "\n" << summary->routing().linear_fraction() << "\n";
//
// Every call but StartGenerate blocks until it has ended.  A failed call returns the server's code and
// message; client/errors.h gives its stable reason.
namespace gatehouse::client {

struct ClientOptions {
  // HOST:PORT; a name that resolves to several addresses is used round robin.
  std::string server = "127.0.0.1:50151";
  // Null: no encryption.
  std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr;
  // Largest message either way.  The server splits its answers at about 1 MiB.
  int max_message_bytes = 64 << 20;
  // A ping after this long without traffic during a call, so that a vanished server is
  // noticed.  The server accepts one every 10 s.
  absl::Duration keepalive = absl::Seconds(30);
  // How often a call that the server did not begin to answer is tried again where the
  // server is unavailable: 1 never does; at most 5, with back-off from 0.1 to 1 s.
  // StartOperation is never repeated.
  int attempts = 4;
  // A connection of its own, where other clients of the process with these options would share one.
  bool own_connection = false;
};

// Ends calls from another thread.  One may serve any number of calls, at once or in
// turn; those begun after Cancel fail at once.  Thread-safe; outlives its calls.
class Canceller {
 public:
  void Cancel();
  bool cancelled() const;
  // Waits that long; true at once when cancelled.
  bool WaitFor(absl::Duration duration);

 private:
  friend class CallContext;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  std::set<grpc::ClientContext*> running_;
};

struct CallOptions {
  // From now until the call's end; DeadlineExceeded after that, on the server too.
  absl::Duration timeout = absl::InfiniteDuration();
  // Ends the call as Cancelled; may be null.
  Canceller* canceller = nullptr;
  // The replica that a proxy before several is to send the call to; empty: any.  Calls that
  // name an operation go to its replica of themselves.
  std::string replica = "";
};

// What is heard of a call while it runs, on the calling thread.  Each may be empty.
// Returning false cancels the call.
struct GenerationEvents {
  std::function<bool(const v1::GenerationStart&)> on_start = nullptr;
  std::function<bool(const v1::PromptInsight&)> on_prompt = nullptr;
  std::function<bool(const v1::GeneratedToken&)> on_token = nullptr;
  std::function<bool(const v1::Activations&)> on_activations = nullptr;  // where the request captures some
};

using GenerationEnd = std::function<void(absl::StatusOr<v1::GenerationSummary>)>;

struct NonlinearityEvents {
  std::function<bool(const v1::NonlinearityStart&)> on_start = nullptr;
  std::function<bool(const v1::InsightTokens&)> on_tokens = nullptr;
};

struct ConsensusEvents {
  std::function<bool(const v1::ConsensusStart&)> on_start = nullptr;
  std::function<bool(const v1::InsightTokens&)> on_tokens = nullptr;
};

// A connection to a Gatehouse server.  Thread-safe.
class Client {
 public:
  // Does not connect yet: that happens at the first call.  InvalidArgument for a bad
  // option.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  // Over a channel made elsewhere, such as one within a server's own process.
  static std::unique_ptr<Client> OnChannel(const std::shared_ptr<grpc::Channel>& channel);
  virtual ~Client() = default;

  // ---- Text ----
  virtual absl::StatusOr<v1::GenerationSummary> Generate(const v1::GenerateRequest& request,
                                                         const GenerationEvents& events,
                                                         const CallOptions& options = {}) = 0;
  // The same without waiting, for many calls at once.  The events, and then once `on_end`, come on threads
  // of gRPC's own, one at a time for each call; they must not block, and may start further calls.  The
  // client, and the canceller, must live until `on_end`.
  virtual void StartGenerate(const v1::GenerateRequest& request, GenerationEvents events, GenerationEnd on_end,
                             const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::ScoreSummary> Score(
      const v1::ScoreRequest& request, const std::function<bool(const v1::ScoredTokens&)>& on_tokens,
      const CallOptions& options = {}, const std::function<bool(const v1::Activations&)>& on_activations = nullptr) = 0;

  // ---- Analysis ----
  virtual absl::StatusOr<v1::AnalysisSummary> ScoreNonlinearity(const v1::ScoreNonlinearityRequest& request,
                                                                const NonlinearityEvents& events,
                                                                const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::AnalysisSummary> TraceConsensus(const v1::TraceConsensusRequest& request,
                                                             const ConsensusEvents& events,
                                                             const CallOptions& options = {}) = 0;

  // ---- The server ----
  // Whether it serves `name`: "readiness" (it takes calls), "liveness" (its engine goes round), a model's or a
  // service's name.  NotFound for others.  Never repeated.
  virtual absl::StatusOr<bool> CheckHealth(const std::string& name, const CallOptions& options = {}) = 0;

  // ---- Models ----
  virtual absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::DescribeModelResponse> DescribeModel(const std::string& model,
                                                                  const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::CalibrationSummary> SelectCalibration(const std::string& model,
                                                                   const std::string& calibration,
                                                                   const CallOptions& options = {}) = 0;

  // ---- Operations ----
  // Uploads a text in chunks.  InvalidArgument, before the server hears of it, at the
  // first byte that is not UTF-8.  `on_progress` hears the bytes sent so far.  The answer's
  // replica has it: pass that on, in CallOptions, to further uploads and StartOperation.
  virtual absl::StatusOr<v1::UploadCorpusResponse> UploadCorpus(std::istream& text, const std::string& display_name,
                                                                const std::function<bool(uint64_t)>& on_progress,
                                                                const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::Operation> StartOperation(const v1::StartOperationRequest& request,
                                                       const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::Operation> GetOperation(const std::string& name, const CallOptions& options = {}) = 0;
  // Reports the operation whenever it changes until it has ended, and returns its last
  // state.  Connects again, a few times, where the connection breaks.
  virtual absl::StatusOr<v1::Operation> WatchOperation(const std::string& name,
                                                       const std::function<bool(const v1::Operation&)>& on_change,
                                                       const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::Operation> CancelOperation(const std::string& name, const CallOptions& options = {}) = 0;
  // Newest first, all pages, at most `limit`; 0: all.
  virtual absl::StatusOr<std::vector<v1::Operation>> ListOperations(size_t limit, const CallOptions& options = {}) = 0;
  // Writes one of the operation's files to `out`, its result where `file` is empty; returns
  // its size.
  virtual absl::StatusOr<uint64_t> FetchResult(const std::string& name, const std::string& file, std::ostream& out,
                                               const CallOptions& options = {}) = 0;
  // An experiment's report, whole.
  virtual absl::StatusOr<v1::Report> GetReport(const std::string& name, const CallOptions& options = {}) = 0;
};

// True once the operation has ended, however.
bool IsDone(const v1::Operation& operation);

// The replica in the name "operations/REPLICA/ID"; empty for anything else.
std::string ReplicaOf(const std::string& operation);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_CLIENT_H_
