#ifndef GATEHOUSE_SERVER_RPC_RESULT_READER_H_
#define GATEHOUSE_SERVER_RPC_RESULT_READER_H_

#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/stream_writer.h"
#include "server/serving/call.h"

namespace gatehouse {

class TaskThreads;

// Feeds one FetchResult stream from a file, as fast as it is read.  Owned by the stream
// and the worker that reads.  Thread-safe.
class ResultReader final : public Call, public std::enable_shared_from_this<ResultReader> {
 public:
  static absl::StatusOr<std::shared_ptr<Call>> Start(TaskThreads& workers, const std::string& path,
                                                     std::shared_ptr<StreamWriter> writer);

  void Cancel() override { cancelled_ = true; }
  void Resume() override;

 private:
  ResultReader(TaskThreads& workers, std::ifstream file, std::shared_ptr<StreamWriter> writer);

  // Reads and sends until the reader has enough.
  void Pump();

  TaskThreads& workers_;
  const std::shared_ptr<StreamWriter> writer_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::ifstream file_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_RESULT_READER_H_
