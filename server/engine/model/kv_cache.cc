#include "server/engine/model/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

SequenceId MakeId(uint32_t slot, uint32_t generation) {
  return static_cast<SequenceId>((static_cast<uint64_t>(generation) << 32) | slot);
}
uint32_t SlotOf(SequenceId id) { return static_cast<uint32_t>(static_cast<uint64_t>(id)); }
uint32_t GenerationOf(SequenceId id) { return static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32); }

absl::Status NotOpen() { return absl::InvalidArgumentError("the sequence is not open"); }

// More than any model's sequences need, and few enough that the list of free ones is small.
constexpr int64_t kMaxPages = int64_t{1} << 22;

int PagesFor(int tokens) { return (tokens + KvCache::kPageTokens - 1) / KvCache::kPageTokens; }

}  // namespace

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config, at::ScalarType dtype,
                                                         at::Device device, int64_t bytes) {
  const int64_t page_elements = int64_t{kPageTokens} * config.kv_heads * config.head_dim;
  const int64_t page_bytes = 2 * config.layers * page_elements * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t pages = std::min(bytes / page_bytes, kMaxPages);
  if (pages < 1) {
    return absl::InvalidArgumentError(StrCat("kv_bytes is ", bytes, ", must be at least one page, ", page_bytes));
  }
  // Not cleared: on a CPU the system gives the memory when it is first written.
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  std::vector<KvLayer> layers(config.layers);
  for (KvLayer& layer : layers) {
    layer.keys = at::empty({pages, config.kv_heads, kPageTokens, config.head_dim}, options);
    layer.values = at::empty({pages, config.kv_heads, kPageTokens, config.head_dim}, options);
  }
  return std::unique_ptr<KvCache>(new KvCache(config.context, pages, page_bytes, std::move(layers)));
}

KvCache::KvCache(int context, int64_t pages, int64_t page_bytes, std::vector<KvLayer> layers)
    : context_(context), pages_total_(pages), page_bytes_(page_bytes), layers_(std::move(layers)), free_pages_(pages) {
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);
}

absl::StatusOr<SequenceId> KvCache::Open(int max_tokens) {
  if (!(max_tokens >= 1 && max_tokens <= context_)) {
    return absl::InvalidArgumentError(
        StrCat("a sequence of ", max_tokens, " tokens, must be in [1, ", context_, "], the model's context"));
  }
  const int pages = PagesFor(max_tokens);
  if (pages > pages_total_) {
    return absl::InvalidArgumentError(StrCat("a sequence of ", max_tokens, " tokens, the memory for keys and values ",
                                             "holds at most ", pages_total_ * kPageTokens));
  }
  const std::lock_guard lock(mutex_);
  if (pages > static_cast<int64_t>(free_pages_.size())) {
    return absl::ResourceExhaustedError(
        StrCat("the memory for keys and values has ", free_pages_.size(), " pages free, the sequence needs ", pages));
  }
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  ++slot.generation;
  slot.open = true;
  slot.length = 0;
  slot.max_tokens = max_tokens;
  slot.pages.assign(free_pages_.rbegin(), free_pages_.rbegin() + pages);
  free_pages_.resize(free_pages_.size() - pages);
  return MakeId(index, slot.generation);
}

void KvCache::Close(SequenceId id) {
  const std::lock_guard lock(mutex_);
  Slot* slot = FindSlot(id);
  if (slot == nullptr) return;
  free_pages_.insert(free_pages_.end(), slot->pages.rbegin(), slot->pages.rend());
  slot->pages.clear();
  slot->open = false;
  free_slots_.push_back(SlotOf(id));
}

absl::Status KvCache::Rollback(SequenceId id, int length) {
  const std::lock_guard lock(mutex_);
  Slot* slot = FindSlot(id);
  if (slot == nullptr) return NotOpen();
  if (!(length >= 0 && length <= slot->length)) {
    return absl::InvalidArgumentError(StrCat("length is ", length, ", must be in [0, ", slot->length, "]"));
  }
  slot->length = length;
  return absl::OkStatus();
}

int KvCache::Length(SequenceId id) const {
  const std::lock_guard lock(mutex_);
  const Slot* slot = FindSlot(id);
  return slot == nullptr ? 0 : slot->length;
}

KvUsage KvCache::usage() const {
  const std::lock_guard lock(mutex_);
  return {.pages_total = pages_total_,
          .pages_used = pages_total_ - static_cast<int64_t>(free_pages_.size()),
          .page_tokens = kPageTokens,
          .page_bytes = page_bytes_};
}

absl::StatusOr<KvCache::View> KvCache::Find(SequenceId id) const {
  const std::lock_guard lock(mutex_);
  const Slot* slot = FindSlot(id);
  if (slot == nullptr) return NotOpen();
  return View{.length = slot->length, .max_tokens = slot->max_tokens, .pages = slot->pages};
}

void KvCache::SetLength(SequenceId id, int length) {
  const std::lock_guard lock(mutex_);
  FindSlot(id)->length = length;
}

const KvCache::Slot* KvCache::FindSlot(SequenceId id) const {
  if (SlotOf(id) >= slots_.size()) return nullptr;
  const Slot& slot = slots_[SlotOf(id)];
  return slot.open && slot.generation == GenerationOf(id) ? &slot : nullptr;
}

}  // namespace gatehouse
