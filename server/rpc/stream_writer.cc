#include "server/rpc/stream_writer.h"

#include <google/protobuf/message.h>

#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/rpc/wire.h"

namespace gatehouse {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  // Not as a std::chrono time, which ends in 2262 and wraps around: clients may ask for longer.
  const gpr_timespec deadline = gpr_convert_clock_type(context.raw_deadline(), GPR_CLOCK_REALTIME);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_REALTIME)) == 0) return absl::InfiniteFuture();
  return absl::FromUnixSeconds(deadline.tv_sec) + absl::Nanoseconds(deadline.tv_nsec);
}

}  // namespace

std::shared_ptr<StreamWriter> StreamWriter::Open(grpc::CallbackServerContext* context, const OutboxLimits& limits,
                                                 CallSlots::Slot slot) {
  std::shared_ptr<StreamWriter> writer(new StreamWriter(context, limits, std::move(slot)));
  writer->self_ = writer;
  return writer;
}

StreamWriter::StreamWriter(grpc::CallbackServerContext* context, const OutboxLimits& limits, CallSlots::Slot slot)
    : context_(context), limits_(limits), deadline_(DeadlineOf(*context)), slot_(std::move(slot)) {}

bool StreamWriter::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void StreamWriter::Attach(std::shared_ptr<Call> call) {
  bool cancel = false, resume = false;
  {
    const std::lock_guard lock(mutex_);
    cancel = cancelled_;
    resume = std::exchange(resume_missed_, false);
    if (!end_.has_value()) call_ = call;
  }
  if (cancel) {
    call->Cancel();
  } else if (resume) {
    call->Resume();
  }
}

bool StreamWriter::CanAccept() const {
  const std::lock_guard lock(mutex_);
  return !full_ || end_.has_value();
}

void StreamWriter::Send(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes = SerializeMessage(message);
  Step step;
  {
    const std::lock_guard lock(mutex_);
    if (end_.has_value()) return;
    waiting_bytes_ += bytes.Length();
    waiting_.push_back(std::move(bytes));
    full_ = full_ || waiting_bytes_ >= limits_.bytes || waiting_.size() >= limits_.messages;
    step = NextStep();
  }
  Do(step);
}

void StreamWriter::End(const absl::Status& status) {
  std::shared_ptr<Call> call;  // let go without the lock
  Step step;
  bool unread;
  {
    const std::lock_guard lock(mutex_);
    if (end_.has_value()) return;
    end_ = status;
    call = std::move(call_);
    step = NextStep();
    unread = write_in_flight_;
  }
  Do(step);
  if (unread) StartLinger();
}

void StreamWriter::StartLinger() {
  const std::lock_guard lock(mutex_);
  if (finishing_ || linger_.has_value()) return;
  linger_.emplace();
  linger_->Set(absl::ToChronoTime(absl::Now() + limits_.linger), [weak = weak_from_this()](bool expired) {
    const std::shared_ptr<StreamWriter> writer = expired ? weak.lock() : nullptr;
    if (writer != nullptr) writer->GiveUp();
  });
}

void StreamWriter::GiveUp() {
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) return;
    giving_up_ = true;  // nobody finishes, so the context stays
  }
  context_->TryCancel();
  Step step;
  {
    const std::lock_guard lock(mutex_);
    giving_up_ = false;
    step = NextStep();
  }
  Do(step);
}

void StreamWriter::OnWriteDone(bool ok) {
  std::shared_ptr<Call> resumed;
  Step step;
  {
    const std::lock_guard lock(mutex_);
    write_in_flight_ = false;
    waiting_bytes_ -= writing_bytes_;
    writing_bytes_ = 0;
    if (!ok) {  // the stream is broken: OnCancel follows
      waiting_.clear();
      waiting_bytes_ = 0;
    }
    if (full_ && waiting_bytes_ <= limits_.bytes / 2 && waiting_.size() <= limits_.messages / 2) {
      full_ = false;
      resumed = call_;
      resume_missed_ = resumed == nullptr;
    }
    step = NextStep();
  }
  Do(step);
  if (resumed != nullptr) resumed->Resume();
}

void StreamWriter::OnCancel() {
  std::shared_ptr<Call> call;
  Step step;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    waiting_.clear();
    waiting_bytes_ = writing_bytes_;
    if (!end_.has_value()) end_ = absl::CancelledError("the caller cancelled");
    call = std::move(call_);
    step = NextStep();
  }
  Do(step);
  if (call != nullptr) call->Cancel();
}

void StreamWriter::OnDone() {
  std::shared_ptr<StreamWriter> self;  // may be the last reference
  std::shared_ptr<Call> call;
  const std::lock_guard lock(mutex_);
  self = std::move(self_);
  call = std::move(call_);
  if (linger_.has_value()) linger_->Cancel();
}

StreamWriter::Step StreamWriter::NextStep() {
  if (write_in_flight_ || finishing_ || giving_up_) return Step::kNone;
  if (!waiting_.empty()) {
    writing_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_bytes_ = writing_.Length();
    write_in_flight_ = true;
    return Step::kWrite;
  }
  if (end_.has_value()) {
    finishing_ = true;
    return Step::kFinish;
  }
  return Step::kNone;
}

void StreamWriter::Do(Step step) {
  switch (step) {
    case Step::kNone:
      return;
    case Step::kWrite:
      StartWrite(&writing_);
      return;
    case Step::kFinish:
      Finish(ToGrpcStatus(*end_));  // end_ does not change again
      return;
  }
}

}  // namespace gatehouse
