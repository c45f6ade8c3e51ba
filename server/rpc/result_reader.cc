#include "server/rpc/result_reader.h"

#include <utility>

#include "gatehouse/v1/operations.pb.h"
#include "server/base/strings.h"
#include "server/rpc/task_threads.h"

namespace gatehouse {
namespace {

constexpr size_t kChunkBytes = size_t{512} << 10;

}  // namespace

absl::StatusOr<std::shared_ptr<Call>> ResultReader::Start(TaskThreads& workers, const std::string& path,
                                                          std::shared_ptr<StreamWriter> writer) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("the result file is gone");
  std::shared_ptr<ResultReader> reader(new ResultReader(workers, std::move(file), std::move(writer)));
  reader->Resume();
  return std::shared_ptr<Call>(reader);
}

ResultReader::ResultReader(TaskThreads& workers, std::ifstream file, std::shared_ptr<StreamWriter> writer)
    : workers_(workers), writer_(std::move(writer)), file_(std::move(file)) {}

void ResultReader::Resume() {
  workers_.Run([self = shared_from_this()] { self->Pump(); });
}

void ResultReader::Pump() {
  const std::lock_guard lock(mutex_);
  while (!cancelled_ && file_.is_open() && writer_->CanAccept()) {
    v1::FetchResultResponse response;
    std::string& data = *response.mutable_data();
    data.resize(kChunkBytes);
    file_.read(data.data(), static_cast<std::streamsize>(data.size()));
    data.resize(static_cast<size_t>(file_.gcount()));
    if (!data.empty()) writer_->Send(response);
    if (file_.good()) continue;
    writer_->End(file_.eof() ? absl::OkStatus() : absl::DataLossError("the result file cannot be read"));
    file_.close();
  }
}

}  // namespace gatehouse
