#include "server/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/tokenizer/added_tokens.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/nfc.h"
#include "server/tokenizer/pre_tokenizer.h"
#include "server/tokenizer/tokenizer_json.h"
#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

// Files of known models are below 40 MB; parsed JSON takes several times its text.
constexpr int64_t kLargestFile = int64_t{1} << 27;
// Keeps all offsets within 32 bits, also of a text that NFC makes longer.
constexpr size_t kLongestText = size_t{1} << 29;

AddedTokenMatcher MakeMatcher(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && spec.nfc) token.content = ToNfc(token.content);
    tokens.push_back(std::move(token));
  }
  return AddedTokenMatcher(std::move(tokens));
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerSpec spec, Bpe bpe);

  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const;
  void EncodePlain(std::string_view text, std::vector<int32_t>& ids) const;

  const Bpe bpe;
  const AddedTokenMatcher raw_matcher;         // of tokens looked for in the text as it came
  const AddedTokenMatcher normalized_matcher;  // of those looked for after NFC
  const bool nfc;
  const PreTokenizerOptions pre_tokenizer;
  const std::vector<int32_t> prefix;
  const std::vector<int32_t> suffix;
  absl::flat_hash_map<std::string, int32_t> token_ids;
  std::vector<std::string> token_bytes;  // by id
  std::vector<bool> is_special;          // by id
};

Tokenizer::Impl::Impl(TokenizerSpec spec, Bpe bpe_in)
    : bpe(std::move(bpe_in)),
      raw_matcher(MakeMatcher(spec, /*normalized=*/false)),
      normalized_matcher(MakeMatcher(spec, /*normalized=*/true)),
      nfc(spec.nfc),
      pre_tokenizer(spec.pre_tokenizer),
      prefix(std::move(spec.prefix)),
      suffix(std::move(spec.suffix)) {
  int32_t size = 0;
  for (const auto& [spelling, id] : spec.model.vocab) size = std::max(size, id + 1);
  for (const AddedToken& token : spec.added_tokens) size = std::max(size, token.id + 1);
  token_bytes.resize(size);
  is_special.resize(size);
  for (const auto& [spelling, id] : spec.model.vocab) {
    token_bytes[id] = BytesOfSpelling(spelling).value_or(spelling);
    token_ids.emplace(spelling, id);
  }
  for (const AddedToken& token : spec.added_tokens) {
    token_bytes[token.id] = token.content;
    is_special[token.id] = token.special;
    token_ids.emplace(token.content, token.id);
  }
}

std::vector<int32_t> Tokenizer::Impl::Encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = prefix;
  for (const AddedTokenMatcher::Span& span : raw_matcher.Split(text, options.plain_text)) {
    if (span.id != AddedTokenMatcher::kText) {
      ids.push_back(span.id);
      continue;
    }
    const bool is_changed = nfc && !IsPlainlyNfc(span.text);
    const std::string normalized = is_changed ? ToNfc(span.text) : std::string();
    const std::string_view piece = is_changed ? std::string_view(normalized) : span.text;
    for (const AddedTokenMatcher::Span& part : normalized_matcher.Split(piece, options.plain_text)) {
      if (part.id != AddedTokenMatcher::kText) {
        ids.push_back(part.id);
      } else {
        EncodePlain(part.text, ids);
      }
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

// Encodes text that holds no added token.
void Tokenizer::Impl::EncodePlain(std::string_view text, std::vector<int32_t>& ids) const {
  std::string storage;
  std::vector<std::string_view> pieces;
  PreTokenize(text, pre_tokenizer, storage, pieces);
  Bpe::Scratch scratch;
  for (const std::string_view piece : pieces) bpe.Encode(piece, scratch, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  GH_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kLargestFile));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Parse(json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json) {
  GH_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(json));
  GH_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(spec.model));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(spec), std::move(bpe))));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kLongestText) {
    return absl::InvalidArgumentError(StrCat("the text has ", text.size(), " bytes, more than ", kLongestText));
  }
  if (const size_t at = FindInvalidUtf8(text); at != std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat("the text is not UTF-8: the byte at ", at, " begins no character"));
  }
  return impl_->Encode(text, options);
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->token_bytes[id];
}

std::string Tokenizer::DecodeBytes(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += TokenBytes(id);
  return bytes;
}

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->is_special[id]; }

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const auto found = impl_->token_ids.find(ToAbsl(token));
  if (found == impl_->token_ids.end()) return std::nullopt;
  return found->second;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->token_bytes.size()); }

}  // namespace gatehouse
