#include "server/tokenizer/pre_tokenizer.h"

#include "server/tokenizer/unicode.h"

namespace gatehouse {
namespace {

using Digits = PreTokenizerOptions::Digits;

CharClass FirstClass(std::string_view text) { return ClassOf(DecodeFirst(text).code_point); }

// The length of a contraction ('s, 't, 're, 've, 'm, 'll, 'd) at the start, or 0.
size_t ContractionLength(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  for (const char c : {'s', 't', 'm', 'd'}) {
    if (text[1] == c) return 2;
  }
  const std::string_view two = text.substr(1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

// The length of the run of `kind` that starts at `from`, plus `from`.
size_t RunEnd(std::string_view text, size_t from, CharClass kind) {
  while (from < text.size()) {
    const DecodedChar next = DecodeFirst(text.substr(from));
    if (ClassOf(next.code_point) != kind) break;
    from += next.length;
  }
  return from;
}

// \s+(?!\S)|\s+ : the whole run at the end of the text; otherwise all but its last
// character, which stays with what follows, unless it is the only one.
size_t SpaceLength(std::string_view text) {
  const size_t end = RunEnd(text, 0, CharClass::kSpace);
  if (end == text.size()) return end;
  const size_t last = DecodeLast(text.substr(0, end)).length;
  return last == end ? end : end - last;
}

// The length of the first piece that Digits cuts.
size_t DigitPieceLength(std::string_view text, Digits digits) {
  if (digits == Digits::kKeep) return text.size();
  const DecodedChar first = DecodeFirst(text);
  const bool numeric = IsNumeric(first.code_point);
  if (numeric && digits == Digits::kEachAlone) return first.length;
  size_t end = first.length;
  while (end < text.size()) {
    const DecodedChar next = DecodeFirst(text.substr(end));
    if (IsNumeric(next.code_point) != numeric) break;
    end += next.length;
  }
  return end;
}

void CutByExpression(std::string_view text, const PreTokenizerOptions& options, std::vector<std::string_view>& pieces) {
  if (!options.use_regex) {
    pieces.push_back(text);
    return;
  }
  while (!text.empty()) {
    const size_t length = Gpt2PieceLength(text);
    pieces.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
}

}  // namespace

size_t Gpt2PieceLength(std::string_view text) {
  if (const size_t length = ContractionLength(text); length != 0) return length;
  // An optional blank belongs to the run that follows it.
  const size_t blank = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const CharClass kind = FirstClass(text.substr(blank));
  if (kind == CharClass::kSpace) return SpaceLength(text);
  return RunEnd(text, blank, kind);
}

void PreTokenize(std::string_view text, const PreTokenizerOptions& options, std::string& storage,
                 std::vector<std::string_view>& pieces) {
  if (!options.add_prefix_space) {
    while (!text.empty()) {
      const size_t length = DigitPieceLength(text, options.digits);
      CutByExpression(text.substr(0, length), options, pieces);
      text.remove_prefix(length);
    }
    return;
  }
  // At most one blank a character is put in: reserved ahead, so that no piece moves.
  storage.clear();
  storage.reserve(2 * text.size());
  while (!text.empty()) {
    const size_t length = DigitPieceLength(text, options.digits);
    const size_t start = storage.size();
    if (text[0] != ' ') storage += ' ';
    storage += text.substr(0, length);
    CutByExpression(std::string_view(storage).substr(start), options, pieces);
    text.remove_prefix(length);
  }
}

}  // namespace gatehouse
