#ifndef GATEHOUSE_SERVER_TOKENIZER_ADDED_TOKENS_H_
#define GATEHOUSE_SERVER_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gatehouse {

// A token found by its spelling in the text, before pre-tokenisation.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // is looked for in the normalised text
  bool special = false;      // controls the model, such as the end of a text
};

// Finds added tokens in text: the leftmost first, of several there the longest.
// Immutable; thread-safe.
class AddedTokenMatcher {
 public:
  static constexpr int32_t kText = -1;
  struct Span {
    int32_t id;  // kText for text between tokens
    std::string_view text;
  };

  // REQUIRES: no two tokens have the same content, and none is empty.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts `text` into tokens and the text between them.  With `skip_special`, a special
  // token found is left as text.  REQUIRES: text is well-formed UTF-8.
  std::vector<Span> Split(std::string_view text, bool skip_special) const;

 private:
  static constexpr int32_t kNoToken = -1;
  struct Match {
    int32_t token;  // index into tokens_, or kNoToken
    size_t length;
  };

  Match LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> is_first_byte_{};
  // A trie: edges_[node * 256 + byte] is the next node, token_at_[node] the token that
  // ends there.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_at_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_ADDED_TOKENS_H_
