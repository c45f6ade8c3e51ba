#ifndef GATEHOUSE_SERVER_SERVING_SCORE_WINDOWS_H_
#define GATEHOUSE_SERVER_SERVING_SCORE_WINDOWS_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace gatehouse {

// How a text is cut for scoring; proto/gatehouse/v1/scoring.proto (ScoreWindow) has the
// definition.  Every position but the first of the text is scored in exactly one
// window; in blocks, every one but the first of each block.
//
// A window that has to score its own first token starts one token earlier.  All its
// tokens go through the model, but the last where it would not fit the capacity.
class ScoreWindows {
 public:
  struct Window {
    int64_t begin = 0;          // first position that goes through the model
    int64_t fed_end = 0;        // one after the last that does; end, or end − 1
    int64_t first = 0;          // first position that this window answers for
    int64_t end = 0;            // one after the last
    bool scores_first = false;  // else `first` has no predecessor in the window
  };

  // InvalidArgument, naming the bound, for a size or stride outside [2, capacity] and
  // [1, size]; 0 means the default.
  static absl::StatusOr<ScoreWindows> Create(int64_t tokens, uint32_t size, uint32_t stride, bool blocks, int capacity);

  int64_t count() const;
  Window At(int64_t index) const;
  // Most positions that a window feeds.
  int most_fed() const;

 private:
  ScoreWindows(int64_t tokens, int64_t size, int64_t stride, bool blocks, int64_t capacity)
      : tokens_(tokens), size_(size), stride_(stride), capacity_(capacity), blocks_(blocks) {}

  int64_t tokens_, size_, stride_, capacity_;
  bool blocks_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_SCORE_WINDOWS_H_
