#ifndef GATEHOUSE_SERVER_TOKENIZER_TOKENIZER_JSON_H_
#define GATEHOUSE_SERVER_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/added_tokens.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/pre_tokenizer.h"

namespace gatehouse {

// Ids from here on are taken for damage: no tokenizer comes near, and tables of ids
// are as long as the highest.
inline constexpr int32_t kTokenIdLimit = 1 << 22;

// What a tokenizer.json says, checked.
struct TokenizerSpec {
  BpeOptions model;
  std::vector<AddedToken> added_tokens;  // ids are those of the reference
  bool nfc = false;
  PreTokenizerOptions pre_tokenizer;
  // What the post-processor puts before and after a text.
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// InvalidArgument, naming the field, for damage and for every setting that the
// tokenizer does not follow.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_TOKENIZER_TOKENIZER_JSON_H_
