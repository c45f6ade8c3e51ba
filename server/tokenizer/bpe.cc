#include "server/tokenizer/bpe.h"

#include <algorithm>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

constexpr int32_t kDropped = -1;
constexpr int32_t kNone = -1;

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(const BpeOptions& options) {
  Bpe bpe;
  bpe.ids_.reserve(options.vocab.size());
  for (const auto& [spelling, id] : options.vocab) bpe.ids_.emplace(spelling, id);
  GH_RETURN_IF_ERROR(bpe.AddMerges(options));
  GH_RETURN_IF_ERROR(bpe.AddBytes(options));
  bpe.AddWholeWords(options);
  bpe.ids_ = {};
  return bpe;
}

absl::Status Bpe::AddMerges(const BpeOptions& options) {
  merges_.reserve(options.merges.size());
  int32_t rank = 0;
  for (const auto& [left, right] : options.merges) {
    for (const std::string& token : {left, right, left + right}) {
      if (ids_.contains(token)) continue;
      return absl::InvalidArgumentError(
          StrCat("model.merges[", rank, "] needs the token ", Quoted(token), ", which model.vocab lacks"));
    }
    // Of two equal merges the later one counts, as in the reference.
    merges_[PairKey(ids_.at(left), ids_.at(right))] = {rank, ids_.at(left + right)};
    ++rank;
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddBytes(const BpeOptions& options) {
  int32_t unk_id = kDropped;
  if (options.unk_token.has_value()) {
    if (const auto found = ids_.find(*options.unk_token); found != ids_.end()) unk_id = found->second;
  }
  fuse_unk_ = options.fuse_unk;
  byte_is_unknown_.fill(true);
  byte_ids_.fill(unk_id);
  for (const auto& [spelling, id] : options.vocab) {
    const std::optional<std::string> bytes = BytesOfSpelling(spelling);
    if (!bytes.has_value() || bytes->size() != 1) continue;
    const auto byte = static_cast<unsigned char>(bytes->front());
    byte_ids_[byte] = id;
    byte_is_unknown_[byte] = false;
  }
  const bool unk_is_needed =
      std::find(byte_is_unknown_.begin(), byte_is_unknown_.end(), true) != byte_is_unknown_.end();
  if (unk_is_needed && options.unk_token.has_value() && unk_id == kDropped) {
    return absl::InvalidArgumentError(StrCat("model.unk_token ", Quoted(*options.unk_token), " is not in model.vocab"));
  }
  return absl::OkStatus();
}

void Bpe::AddWholeWords(const BpeOptions& options) {
  Scratch scratch;
  std::vector<int32_t> ids;
  for (const auto& [spelling, id] : options.vocab) {
    std::optional<std::string> bytes = BytesOfSpelling(spelling);
    if (!bytes.has_value() || bytes->empty()) continue;
    ids.clear();
    if (!options.ignore_merges) MergeAll(*bytes, scratch, ids);
    if (options.ignore_merges || (ids.size() == 1 && ids[0] == id)) whole_words_.emplace(*std::move(bytes), id);
  }
}

void Bpe::Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (const auto whole = whole_words_.find(ToAbsl(piece)); whole != whole_words_.end()) {
    ids.push_back(whole->second);
    return;
  }
  MergeAll(piece, scratch, ids);
}

// Merges the pair of lowest rank, the leftmost of equals, until none is left.
void Bpe::MergeAll(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  FillSymbols(piece, scratch);
  if (scratch.symbols_.empty()) return;
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) PushCandidate(static_cast<int32_t>(i), scratch);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[best.at];
    // An earlier merge may have taken one of the two.
    if (left.id != best.left_id || left.next == kNone || symbols[left.next].id != best.right_id) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = best.merged_id;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[left.next].previous = best.at;
    for (const int32_t at : {left.previous, best.at}) {
      const size_t size = heap.size();
      if (at != kNone) PushCandidate(at, scratch);
      if (heap.size() > size) std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (int32_t at = 0; at != kNone; at = symbols[at].next) ids.push_back(symbols[at].id);
}

void Bpe::FillSymbols(std::string_view piece, Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_fused = fuse_unk_ && after_unknown && byte_is_unknown_[byte];
    after_unknown = byte_is_unknown_[byte];
    if (byte_ids_[byte] == kDropped || is_fused) continue;
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({byte_ids_[byte], at - 1, at + 1});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

// Adds the merge of the symbol with the one after it, if there is one, at the end of
// the heap's memory.
void Bpe::PushCandidate(int32_t at, Scratch& scratch) const {
  const Scratch::Symbol& left = scratch.symbols_[at];
  if (left.next == kNone) return;
  const int32_t right_id = scratch.symbols_[left.next].id;
  const auto merge = merges_.find(PairKey(left.id, right_id));
  if (merge == merges_.end()) return;
  scratch.heap_.push_back({merge->second.rank, at, left.id, right_id, merge->second.merged_id});
}

}  // namespace gatehouse
