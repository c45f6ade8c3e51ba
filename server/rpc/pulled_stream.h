#ifndef GATEHOUSE_SERVER_RPC_PULLED_STREAM_H_
#define GATEHOUSE_SERVER_RPC_PULLED_STREAM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/report.h"
#include "server/rpc/stream_writer.h"
#include "server/serving/call.h"

namespace gatehouse {

class TaskThreads;

// Feeds one stream from what is there already, a file or a report, as fast as it is read.
// Owned by the stream and the worker that sends.  Thread-safe.
class PulledStream final : public Call, public std::enable_shared_from_this<PulledStream> {
 public:
  // Sends the next message; false where there is none.  Called by one worker at a time.
  using SendNext = std::function<absl::StatusOr<bool>(StreamWriter&)>;

  static std::shared_ptr<Call> Start(TaskThreads& workers, SendNext send_next, std::shared_ptr<StreamWriter> writer);

  void Cancel() override { cancelled_ = true; }
  void Resume() override;

 private:
  PulledStream(TaskThreads& workers, SendNext send_next, std::shared_ptr<StreamWriter> writer);

  // Sends until the reader has enough.
  void Pump();

  TaskThreads& workers_;
  const std::shared_ptr<StreamWriter> writer_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  SendNext send_next_;  // empty once all is sent
};

// The messages of FetchResult.  NotFound where the file cannot be opened.
absl::StatusOr<PulledStream::SendNext> FileChunks(const std::string& path);
// The messages of GetReport.
PulledStream::SendNext ReportParts(Report report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_PULLED_STREAM_H_
