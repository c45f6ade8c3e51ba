#include "server/rpc/pulled_stream.h"

#include <fstream>
#include <utility>

#include "gatehouse/v1/operations.pb.h"
#include "server/rpc/task_threads.h"
#include "server/rpc/translate.h"

namespace gatehouse {
namespace {

constexpr size_t kChunkBytes = size_t{512} << 10;

}  // namespace

std::shared_ptr<Call> PulledStream::Start(TaskThreads& workers, SendNext send_next,
                                          std::shared_ptr<StreamWriter> writer) {
  std::shared_ptr<PulledStream> stream(new PulledStream(workers, std::move(send_next), std::move(writer)));
  stream->Resume();
  return stream;
}

PulledStream::PulledStream(TaskThreads& workers, SendNext send_next, std::shared_ptr<StreamWriter> writer)
    : workers_(workers), writer_(std::move(writer)), send_next_(std::move(send_next)) {}

void PulledStream::Resume() {
  workers_.Run([self = shared_from_this()] { self->Pump(); });
}

void PulledStream::Pump() {
  const std::lock_guard lock(mutex_);
  while (!cancelled_ && send_next_ && writer_->CanAccept()) {
    const absl::StatusOr<bool> sent = send_next_(*writer_);
    if (sent.ok() && *sent) continue;
    send_next_ = nullptr;
    writer_->End(sent.status());
  }
}

absl::StatusOr<PulledStream::SendNext> FileChunks(const std::string& path) {
  const auto file = std::make_shared<std::ifstream>(path, std::ios::binary);
  if (!*file) return absl::NotFoundError("the file is gone");
  return [file](StreamWriter& writer) -> absl::StatusOr<bool> {
    v1::FetchResultResponse response;
    std::string& data = *response.mutable_data();
    data.resize(kChunkBytes);
    file->read(data.data(), static_cast<std::streamsize>(data.size()));
    if (file->bad()) return absl::DataLossError("the file cannot be read");
    data.resize(static_cast<size_t>(file->gcount()));
    if (data.empty()) return false;
    writer.Send(response);
    return true;
  };
}

PulledStream::SendNext ReportParts(Report report) {
  struct Position {
    bool begun = false;
    size_t table = 0, row = 0;
  };
  return [report = std::make_shared<const Report>(std::move(report)),
          at = Position()](StreamWriter& writer) mutable -> absl::StatusOr<bool> {
    v1::GetReportResponse response;
    if (!at.begun) {
      at.begun = true;
      *response.mutable_report() = ToProtoWithoutTables(*report);
    } else {
      if (at.table == report->tables.size()) return false;
      const ReportTable& table = report->tables[at.table];
      at.row = AddRows(table, at.row, *response.mutable_table());
      if (at.row == RowCount(table)) {
        at.row = 0;
        ++at.table;
      }
    }
    writer.Send(response);
    return true;
  };
}

}  // namespace gatehouse
