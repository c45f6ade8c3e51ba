#include "server/serving/corpus_tokens.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

// Where a text can be cut, from `from` on, without changing its tokens: after a line's end
// that has a visible character on either side.  npos if nowhere.
size_t NextCut(std::string_view text, size_t from) {
  for (size_t end = text.find('\n', from); end != std::string_view::npos; end = text.find('\n', end + 1)) {
    if (end > 0 && end + 1 < text.size() && absl::ascii_isgraph(text[end - 1]) && absl::ascii_isalnum(text[end + 1])) {
      return end + 1;
    }
  }
  return std::string_view::npos;
}

// A text file, piece by piece; each but the last is longer than kPieceBytes and ends where
// the text can be cut.
class Pieces {
 public:
  explicit Pieces(const InputFile& file) : file_(file) {}

  bool done() const { return begin() == file_.size(); }
  // Where the next piece begins.
  uint64_t begin() const { return read_ - text_.size(); }
  std::string HexDigest() { return digest_.HexDigest(); }

  absl::StatusOr<std::string> Next() {
    size_t end = std::string::npos;
    size_t looked = kPieceBytes;  // no cut lies before
    while (end == std::string::npos && read_ < file_.size()) {
      GH_RETURN_IF_ERROR(ReadMore());
      end = NextCut(text_, looked);
      looked = std::max(looked, text_.size() - 1);
    }
    std::string rest = end == std::string::npos ? "" : text_.substr(end);
    text_.resize(text_.size() - rest.size());
    return std::exchange(text_, std::move(rest));
  }

 private:
  absl::Status ReadMore() {
    const size_t had = text_.size();
    text_.resize(had + std::min<uint64_t>(kPieceBytes, file_.size() - read_));
    const std::span<char> more = std::span(text_).subspan(had);
    GH_RETURN_IF_ERROR(file_.Read(read_, more));
    digest_.Update({more.data(), more.size()});
    read_ += more.size();
    return absl::OkStatus();
  }

  const InputFile& file_;
  std::string text_;  // read, and not yet given out
  uint64_t read_ = 0;
  Sha256 digest_;
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadCorpusTokens(const CorpusStore::Found& corpus, const Tokenizer& tokenizer,
                                                      const ProgressFn& progress, const std::atomic<bool>& cancelled) {
  GH_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(corpus.path));
  Pieces pieces(file);
  std::vector<int32_t> ids;
  while (!pieces.done()) {
    if (cancelled.load()) return absl::CancelledError("cancelled");
    progress(static_cast<double>(pieces.begin()) / static_cast<double>(file.size()), "reading the corpus");
    Tokenizer::EncodeOptions options;
    options.add_special_tokens = pieces.begin() == 0;
    GH_ASSIGN_OR_RETURN(const std::string text, pieces.Next());
    GH_ASSIGN_OR_RETURN(const std::vector<int32_t> piece, tokenizer.Encode(text, options));
    ids.insert(ids.end(), piece.begin(), piece.end());
  }
  if (pieces.HexDigest() != corpus.sha256) {
    return absl::DataLossError(StrCat("corpora/", corpus.sha256, " has changed since its upload"));
  }
  return ids;
}

ProgressFn PartOf(const ProgressFn& whole, double begin, double end) {
  return
      [&whole, begin, end](double fraction, std::string_view stage) { whole(begin + (end - begin) * fraction, stage); };
}

}  // namespace gatehouse
