#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_KV_CACHE_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_KV_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/model/config.h"

namespace gatehouse {

// The keys and values of all sequences of an engine, in pages of kPageTokens positions.
// The memory is reserved once; a sequence owns the pages that Open reserved for it until
// Close.  Page p means the same place in every layer.
//
// Owned by the engine.  Thread-safe but for the memory behind layer(): the caller of a
// step alone reads and writes that, and closes no sequence meanwhile.
class KvCache {
 public:
  static constexpr int kPageTokens = 32;

  // As many pages as `bytes` holds.  InvalidArgument when that is none.  Exceptions of
  // LibTorch pass through.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config, at::ScalarType dtype,
                                                         at::Device device, int64_t bytes);

  // See Engine.
  absl::StatusOr<SequenceId> Open(int max_tokens);
  void Close(SequenceId id);
  absl::Status Rollback(SequenceId id, int length);
  int Length(SequenceId id) const;
  KvUsage usage() const;

  // A sequence as a step sees it.
  struct View {
    int length = 0;
    int max_tokens = 0;
    std::span<const int32_t> pages;  // valid until Close
  };
  // InvalidArgument for a sequence that is not open.
  absl::StatusOr<View> Find(SequenceId id) const;
  // The sequence now has `length` positions.  REQUIRES: open, length ≤ max_tokens.
  void SetLength(SequenceId id, int length);

  KvLayer& layer(int index) { return layers_[index]; }

 private:
  struct Slot {
    uint32_t generation = 0;
    bool open = false;
    int length = 0;
    int max_tokens = 0;
    std::vector<int32_t> pages;
  };

  KvCache(int context, int64_t pages, int64_t page_bytes, std::vector<KvLayer> layers);

  // Null for an id that was never given out or was closed.  REQUIRES: mutex_ is held.
  const Slot* FindSlot(SequenceId id) const;
  Slot* FindSlot(SequenceId id) { return const_cast<Slot*>(std::as_const(*this).FindSlot(id)); }

  const int context_;
  const int64_t pages_total_;
  const int64_t page_bytes_;
  std::vector<KvLayer> layers_;

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<int32_t> free_pages_;  // the last is taken first
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_KV_CACHE_H_
