#ifndef GATEHOUSE_SERVER_PAGE_OUTBOX_H_
#define GATEHOUSE_SERVER_PAGE_OUTBOX_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace gatehouse {

// Lines on their way from one thread to another.  What waits is bounded: past the limit
// Put waits until some was taken.  Thread-safe.
class Outbox {
 public:
  explicit Outbox(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // False, and the line is dropped, once the reader has closed it.
  bool Put(std::string line);
  // No line follows.
  void End();
  // Nobody reads any more: whoever waits in Put goes on.
  void Close();

  struct Taken {
    std::string lines;  // all that waited
    bool ended = false;
  };
  // Waits that long for a line or the end.
  Taken Take(absl::Duration patience);

 private:
  const size_t limit_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;
  bool ended_ = false, closed_ = false;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_PAGE_OUTBOX_H_
