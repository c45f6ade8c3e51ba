#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_WORK_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_WORK_H_

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/engine/engine.h"

namespace gatehouse {

// How far a long computation is, and whether it is still wanted.  One computation owns
// it; not thread-safe, but `cancelled` may be set from any thread.
class Work {
 public:
  // `total` is the whole work, in any unit.
  Work(double total, const ProgressFn& progress, const std::atomic<bool>& cancelled)
      : total_(total), progress_(progress), cancelled_(cancelled) {}

  // What the next steps belong to, such as "costs: layer 3 of 24".
  void SetStage(std::string stage) { stage_ = std::move(stage); }

  // Call before each piece of work, with its share.  Cancelled once that is asked for.
  absl::Status Step(double units) {
    if (cancelled_.load(std::memory_order_relaxed)) return absl::CancelledError("cancelled");
    if (progress_) progress_(std::min(done_ / total_, 1.0), stage_);
    done_ += units;
    return absl::OkStatus();
  }

 private:
  const double total_;
  const ProgressFn& progress_;
  const std::atomic<bool>& cancelled_;
  double done_ = 0;
  std::string stage_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_WORK_H_
