#include "server/engine/training/training_batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <random>
#include <utility>

#include "server/engine/analysis/shuffle.h"

namespace gatehouse {

at::Tensor BlockIds(std::span<const int32_t> tokens, std::span<const int64_t> blocks, int window) {
  at::Tensor ids = at::empty({static_cast<int64_t>(blocks.size()), window}, at::kLong);
  int64_t* next = ids.mutable_data_ptr<int64_t>();
  for (const int64_t block : blocks) next = std::copy_n(tokens.begin() + block * window, window, next);
  return ids;
}

TrainingBatches::TrainingBatches(std::span<const int32_t> tokens, std::vector<int64_t> blocks, int window,
                                 int sequences, uint64_t seed)
    : tokens_(tokens), blocks_(std::move(blocks)), window_(window), sequences_(sequences), seed_(seed) {}

int64_t TrainingBatches::BlockAt(int64_t place) {
  const int64_t epoch = place / blocks();
  if (epoch != epoch_) {
    order_ = blocks_;
    std::mt19937_64 random(seed_ * 1'000'003 + static_cast<uint64_t>(epoch));
    Shuffle(order_, random);
    epoch_ = epoch;
  }
  return order_[place % blocks()];
}

at::Tensor TrainingBatches::Batch(int64_t step) {
  std::vector<int64_t> chosen(sequences_);
  for (int i = 0; i < sequences_; ++i) chosen[i] = BlockAt(step * sequences_ + i);
  return BlockIds(tokens_, chosen, window_);
}

}  // namespace gatehouse
