#ifndef GATEHOUSE_SERVER_TOKENIZER_TOKENIZER_H_
#define GATEHOUSE_SERVER_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse {

// Turns text into the tokens a model was trained with, and back: byte-level BPE as a
// Hugging Face tokenizer.json describes it.  Immutable; thread-safe.
//
//   GH_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load("models/gpt2/tokenizer.json"));
//   GH_ASSIGN_OR_RETURN(auto ids, tokenizer->Encode("Hello world"));
class Tokenizer {
 public:
  struct EncodeOptions {
    // Keep text that spells a special token as text, instead of making the token of it.
    bool plain_text = false;
    // Add what the post-processor adds (such as a BOS token).
    bool add_special_tokens = true;
  };

  // InvalidArgument for a damaged file or for any setting this class does not know,
  // which it names: never silently different tokens.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view json);
  ~Tokenizer();

  // InvalidArgument unless `text` is UTF-8.  A byte that the vocabulary has no token for
  // becomes the file's unk_token, or is dropped where it names none, as in the reference.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const { return Encode(text, EncodeOptions{}); }

  // The token's bytes, not necessarily whole characters; empty for an id that is not
  // in the vocabulary (padding rows of a model's output).  Special tokens give their
  // spelling.
  std::string_view TokenBytes(int32_t id) const;
  // The concatenation of TokenBytes.
  std::string DecodeBytes(std::span<const int32_t> ids) const;
  bool IsSpecial(int32_t id) const;
  // The id of a token as tokenizer.json spells it ("Ġthe", "<|endoftext|>").
  std::optional<int32_t> TokenId(std::string_view token) const;

  // One more than the highest id.
  int vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_TOKENIZER_H_
