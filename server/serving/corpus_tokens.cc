#include "server/serving/corpus_tokens.h"

#include <string_view>

#include "absl/strings/ascii.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"

namespace gatehouse {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

// Where a text of more than `from` bytes can be cut without changing its tokens: after a
// line's end that has a visible character on either side.  The text's end if nowhere.
size_t NextCut(std::string_view text, size_t from) {
  for (size_t end = text.find('\n', from); end != std::string_view::npos; end = text.find('\n', end + 1)) {
    if (end > 0 && end + 1 < text.size() && absl::ascii_isgraph(text[end - 1]) && absl::ascii_isalnum(text[end + 1])) {
      return end + 1;
    }
  }
  return text.size();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadCorpusTokens(const std::string& path, const Tokenizer& tokenizer,
                                                      const ProgressFn& progress, const std::atomic<bool>& cancelled) {
  GH_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text = file.bytes();
  std::vector<int32_t> ids;
  size_t begin = 0;
  while (begin < text.size()) {
    if (cancelled.load()) return absl::CancelledError("cancelled");
    progress(static_cast<double>(begin) / static_cast<double>(text.size()), "reading the corpus");
    const size_t end = text.size() - begin <= kPieceBytes ? text.size() : NextCut(text, begin + kPieceBytes);
    Tokenizer::EncodeOptions options;
    options.add_special_tokens = begin == 0;
    GH_ASSIGN_OR_RETURN(const std::vector<int32_t> piece, tokenizer.Encode(text.substr(begin, end - begin), options));
    ids.insert(ids.end(), piece.begin(), piece.end());
    begin = end;
  }
  return ids;
}

ProgressFn PartOf(const ProgressFn& whole, double begin, double end) {
  return
      [&whole, begin, end](double fraction, std::string_view stage) { whole(begin + (end - begin) * fraction, stage); };
}

}  // namespace gatehouse
