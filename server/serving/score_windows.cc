#include "server/serving/score_windows.h"

#include <algorithm>

#include "server/base/strings.h"

namespace gatehouse {

absl::StatusOr<ScoreWindows> ScoreWindows::Create(int64_t tokens, uint32_t size, uint32_t stride, bool blocks,
                                                  int capacity) {
  const int64_t window = size == 0 ? capacity : int64_t{size};
  if (!(window >= 2 && window <= capacity)) {
    return absl::InvalidArgumentError(StrCat("window.size is ", window, ", must be in [2, ", capacity, "]"));
  }
  if (int64_t{stride} > window) {
    return absl::InvalidArgumentError(StrCat("window.stride is ", stride, ", must be in [1, ", window, "]"));
  }
  if (blocks && stride != 0 && int64_t{stride} != window) {
    return absl::InvalidArgumentError(
        StrCat("window.stride is ", stride, ", must be 0 or the size, ", window, ", where blocks are asked for"));
  }
  return ScoreWindows(tokens, window, stride == 0 ? window : int64_t{stride}, blocks, capacity);
}

int64_t ScoreWindows::count() const {
  if (tokens_ <= size_) return 1;
  return 1 + (tokens_ - size_ + stride_ - 1) / stride_;
}

ScoreWindows::Window ScoreWindows::At(int64_t index) const {
  Window window;
  window.begin = index * stride_;
  window.end = std::min(window.begin + size_, tokens_);
  window.first = index == 0 ? 0 : window.begin - stride_ + size_;  // where the window before ended
  window.scores_first = index > 0 && !blocks_;
  if (window.scores_first && window.first == window.begin) --window.begin;
  window.fed_end = std::min(window.end, window.begin + capacity_);
  return window;
}

int ScoreWindows::most_fed() const {
  const bool starts_earlier = !blocks_ && stride_ == size_ && tokens_ > size_;
  return static_cast<int>(std::min({tokens_, capacity_, size_ + (starts_earlier ? 1 : 0)}));
}

}  // namespace gatehouse
