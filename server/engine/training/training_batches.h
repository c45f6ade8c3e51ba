#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_BATCHES_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_BATCHES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace gatehouse {

// Blocks of a text as [blocks, window] int64 ids; block i is tokens[i · window,
// (i + 1) · window).
at::Tensor BlockIds(std::span<const int32_t> tokens, std::span<const int64_t> blocks, int window);

// Which blocks each step of a training sees: all of them in an order drawn from the seed,
// then all again in another.  A step's batch follows from the seed and the step alone, so a
// resumed training needs nothing else to go on as it would have.  `tokens` must outlive it;
// used by one thread.
class TrainingBatches {
 public:
  // REQUIRES: at least one block; sequences > 0.
  TrainingBatches(std::span<const int32_t> tokens, std::vector<int64_t> blocks, int window, int sequences,
                  uint64_t seed);

  // [sequences, window] int64.
  at::Tensor Batch(int64_t step);

  int64_t sequences() const { return sequences_; }
  int64_t window() const { return window_; }
  // Of the whole training text.
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  int64_t BlockAt(int64_t place);

  std::span<const int32_t> tokens_;
  std::vector<int64_t> blocks_;  // ascending
  int window_;
  int sequences_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of epoch_
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_TRAINING_BATCHES_H_
