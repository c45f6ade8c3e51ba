#ifndef GATEHOUSE_SERVER_TOKENIZER_PRE_TOKENIZER_H_
#define GATEHOUSE_SERVER_TOKENIZER_PRE_TOKENIZER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gatehouse {

// How text is cut into the pieces that BPE works on: by digits first, then by the
// expression of GPT-2.
struct PreTokenizerOptions {
  enum class Digits {
    kKeep,      // digits are not special
    kRuns,      // a run of digits is a piece of its own
    kEachAlone  // each digit is
  };
  Digits digits = Digits::kKeep;
  // Put a blank before a text, and before each piece that `digits` cut, where it does
  // not start with one.
  bool add_prefix_space = false;
  // Cut by the expression of GPT-2; otherwise the text stays in one piece.
  bool use_regex = true;
};

// The length in bytes of the first match of GPT-2's expression in `text`:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// REQUIRES: text is well-formed UTF-8 and not empty.
size_t Gpt2PieceLength(std::string_view text);

// Appends the pieces of `text` to `pieces`.  Pieces that are not part of `text` (those
// with a blank put before them) live in `storage`.  REQUIRES: text is well-formed.
void PreTokenize(std::string_view text, const PreTokenizerOptions& options, std::string& storage,
                 std::vector<std::string_view>& pieces);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_PRE_TOKENIZER_H_
