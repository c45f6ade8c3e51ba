#ifndef GATEHOUSE_SERVER_TOKENIZER_BPE_H_
#define GATEHOUSE_SERVER_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gatehouse {

// What a tokenizer.json says of its model.
struct BpeOptions {
  std::vector<std::pair<std::string, int32_t>> vocab;       // spelling, id
  std::vector<std::pair<std::string, std::string>> merges;  // spellings; the first merges first
  // A piece that is in the vocabulary is its token, whatever the merges would make.
  bool ignore_merges = false;
  // The token of a byte that the vocabulary lacks; without one such bytes are dropped.
  std::optional<std::string> unk_token = std::nullopt;
  // One unk_token for a run of such bytes.
  bool fuse_unk = false;
};

// Byte-pair encoding over the bytes of a piece.  Immutable; thread-safe.
//
// A piece of n bytes takes O(n log n) whatever it holds: candidate merges wait in a
// heap, symbols in a linked list.  Most words need no merging: those that would come
// out as one token are looked up whole.
class Bpe {
 public:
  // Working memory, kept by the caller so that it is allocated once per text.
  class Scratch {
   private:
    friend class Bpe;
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      int32_t rank;
      int32_t at;
      int32_t left_id;
      int32_t right_id;
      int32_t merged_id;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };

  // InvalidArgument for a merge of tokens that the vocabulary lacks, or an unk_token
  // that is needed and missing.
  static absl::StatusOr<Bpe> Create(const BpeOptions& options);

  // Appends the tokens of `piece`.  REQUIRES: fewer than 2^31 bytes.
  void Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged_id;
  };

  Bpe() = default;
  absl::Status AddMerges(const BpeOptions& options);
  absl::Status AddBytes(const BpeOptions& options);
  void AddWholeWords(const BpeOptions& options);
  void MergeAll(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void FillSymbols(std::string_view piece, Scratch& scratch) const;
  void PushCandidate(int32_t at, Scratch& scratch) const;

  static uint64_t PairKey(int32_t left_id, int32_t right_id) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left_id)) << 32) | static_cast<uint32_t>(right_id);
  }

  absl::flat_hash_map<std::string, int32_t> ids_;  // of spellings; only while loading
  absl::flat_hash_map<uint64_t, Merge> merges_;
  std::array<int32_t, 256> byte_ids_;  // kDropped for a byte without a token
  absl::flat_hash_map<std::string, int32_t> whole_words_;
  bool fuse_unk_ = false;
  std::array<bool, 256> byte_is_unknown_{};
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_BPE_H_
