#include "server/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/base/digest.h"
#include "server/tokenizer/nfc.h"
#include "tests/tokenizer/test_tokenizers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::Json;
using ::gatehouse::testing::ReadRepositoryFile;
using ::gatehouse::testing::Utf8;

// What the reference gives over all code points; tests/golden/make_tokenizer_fixtures.py
// made it.
std::string ReferenceDigest(const char* name) {
  const Json vectors = Json::parse(ReadRepositoryFile("tests/data/tokenizer/vectors.json"), nullptr, false);
  return vectors["unicode"][name];
}

template <typename Visit>
void ForEachCodePoint(const Visit& visit) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c >= 0xE000) visit(c);
  }
}

TEST(Unicode, ClassesAllCodePointsAsTheReferenceDoes) {
  std::string digits;
  ForEachCodePoint(
      [&](char32_t c) { digits += "0123456789ABCDEF"[static_cast<int>(ClassOf(c)) + (IsNumeric(c) ? 8 : 0)]; });
  EXPECT_EQ(Sha256Hex(digits), ReferenceDigest("classes"));
}

TEST(Unicode, NormalizesAllCodePointsAsTheReferenceDoes) {
  Sha256 alone;
  Sha256 between_marks;
  ForEachCodePoint([&](char32_t c) {
    std::string text;
    AppendUtf8(c, text);
    alone.Update(ToNfc(text));
    between_marks.Update(ToNfc(Utf8(u8"A\u0345") + text + Utf8(u8"\u0338")));
  });
  EXPECT_EQ(alone.HexDigest(), ReferenceDigest("nfc"));
  EXPECT_EQ(between_marks.HexDigest(), ReferenceDigest("nfc_between_marks"));
}

TEST(Unicode, KnowsExactlyTheTwentyFiveWhiteSpaces) {
  std::vector<char32_t> spaces;
  ForEachCodePoint([&](char32_t c) {
    if (ClassOf(c) == CharClass::kSpace) spaces.push_back(c);
  });
  const std::vector<char32_t> expected = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,   0xA0,   0x1680,
                                          0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                                          0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  EXPECT_EQ(spaces, expected);
}

TEST(Unicode, TakesLettersMarksDigitsAndJoinersForWordCharacters) {
  for (const char32_t c : {U'a', U'_', U'7', U'\u00E9', U'\u0301', U'\u200D', U'\u24B6', U'\u4E00', U'\u2167'}) {
    EXPECT_TRUE(IsWordChar(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U' ', U'-', U'\'', U'\u00BD', U'\u00A0', U'\u2019', U'\U0001F600'}) {
    EXPECT_FALSE(IsWordChar(c)) << static_cast<uint32_t>(c);
  }
}

TEST(Unicode, FindsTheFirstByteThatIsNotUtf8) {
  EXPECT_EQ(FindInvalidUtf8(""), std::string::npos);
  EXPECT_EQ(FindInvalidUtf8(Utf8(u8"a\u00E9\u3042\U0001F600\uFFFD\U0010FFFF")), std::string::npos);
  const std::pair<const char*, size_t> cases[] = {
      {"\xFF\xFE", 0},          // never a lead
      {"ab\x80", 2},            // a continuation alone
      {"a\xC3", 1},             // cut off
      {"\xF0\x9F\x98", 0},      // cut off
      {"\xF0\x9F\x98zz", 0},    // followed by another character
      {"\xC0\xAF", 0},          // overlong
      {"\xE0\x80\xAF", 0},      // overlong
      {"\xF0\x8F\xBF\xBF", 0},  // overlong
      {"x\xED\xA0\x80", 1},     // a surrogate
      {"\xF4\x90\x80\x80", 0},  // beyond U+10FFFF
      {"\xF8\x88\x80\x80\x80", 0},
  };
  for (const auto& [text, at] : cases) EXPECT_EQ(FindInvalidUtf8(text), at) << ::testing::PrintToString(text);
}

TEST(Unicode, EncodesAndDecodesEveryCodePoint) {
  ForEachCodePoint([](char32_t c) {
    std::string text;
    AppendUtf8(c, text);
    ASSERT_EQ(FindInvalidUtf8(text), std::string::npos);
    ASSERT_EQ(DecodeFirst(text + "z").code_point, c);
    ASSERT_EQ(DecodeFirst(text + "z").length, text.size());
    ASSERT_EQ(DecodeLast("z" + text).code_point, c);
  });
}

TEST(Unicode, QuotesNoMoreThanAFewCharactersAndNeverHalfOfOne) {
  EXPECT_EQ(Quoted("ab"), "\"ab\"");
  for (int blanks = 0; blanks < 4; ++blanks) {
    std::string text(blanks, ' ');
    for (int i = 0; i < 1000; ++i) text += Utf8(u8"\U0001F600");
    EXPECT_LT(Quoted(text).size(), 80u);
    EXPECT_EQ(FindInvalidUtf8(Quoted(text)), std::string::npos);
  }
}

TEST(Nfc, ComposesOrdersAndLeavesLaterMarksWhereTheyStand) {
  const std::pair<const char8_t*, const char8_t*> cases[] = {
      {u8"", u8""},
      {u8"plain", u8"plain"},
      {u8"e\u0301", u8"\u00E9"},
      {u8"\u212B", u8"\u00C5"},                           // a singleton
      {u8"a\u0323\u0307", u8"\u1EA1\u0307"},              // one of two marks fits
      {u8"a\u0307\u0323", u8"\u1EA1\u0307"},              // the marks change places first
      {u8"\u1112\u1161\u11AB", u8"\uD55C"},               // Hangul
      {u8"\uAC00\u11A8", u8"\uAC01"},                     // a syllable takes a final
      {u8"\uAC01\u11A8", u8"\uAC01\u11A8"},               // but not two
      {u8"\u0958", u8"\u0915\u093C"},                     // excluded from composition
      {u8"a\u0305\u0301", u8"a\u0305\u0301"},             // one of the same class does
      {u8"e\u0335\u0301", u8"\u00E9\u0335"},              // a mark of another class does not block
      {u8"A\u0345\u08D3\u0338", u8"A\u0345\u08D3\u0338"}  // U+08D3 came with Unicode 11: a starter here
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(ToNfc(Utf8(text)), Utf8(expected));
  }
}

TEST(Nfc, KeepsTheOrderOfMarksOfOneClass) {
  // Of classes 230 and 220; none of them composes with "q".
  constexpr char32_t kAbove[] = {U'\u0311', U'\u0312', U'\u0310', U'\u030F', U'\u030E', U'\u030D'};
  constexpr char32_t kBelow[] = {U'\u0326', U'\u0325', U'\u0324', U'\u0323', U'\u032A', U'\u0329'};
  std::string text = "q";
  std::string above;
  std::string below;
  for (int i = 0; i < 18; ++i) {
    AppendUtf8(kAbove[i % 6], text);
    AppendUtf8(kAbove[i % 6], above);
    AppendUtf8(kBelow[i % 6], text);
    AppendUtf8(kBelow[i % 6], below);
  }
  EXPECT_EQ(ToNfc(text), "q" + below + above);
}

TEST(Nfc, OrdersAHundredThousandMarksInReasonableTime) {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += i % 2 == 0 ? Utf8(u8"\u0345") : Utf8(u8"\u0334");
  const std::string normalized = ToNfc(text);
  EXPECT_EQ(normalized.size(), text.size());
  EXPECT_EQ(normalized.substr(0, 5), Utf8(u8"a\u0334\u0334"));
  EXPECT_EQ(ToNfc(normalized), normalized);
}

}  // namespace
}  // namespace gatehouse
