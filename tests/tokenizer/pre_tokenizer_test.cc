#include "server/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tokenizer/test_tokenizers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::Utf8;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Digits = PreTokenizerOptions::Digits;

std::vector<std::string> Pieces(std::string_view text, const PreTokenizerOptions& options = {}) {
  std::string storage;
  std::vector<std::string_view> pieces;
  PreTokenize(text, options, storage, pieces);
  return {pieces.begin(), pieces.end()};
}

TEST(PreTokenizer, KeepsTheLastBlankWithTheNextWord) {
  EXPECT_THAT(Pieces("  a"), ElementsAre(" ", " a"));
  EXPECT_THAT(Pieces("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(Pieces("return  x\n"), ElementsAre("return", " ", " x", "\n"));
  EXPECT_THAT(Pieces("a  "), ElementsAre("a", "  "));
}

TEST(PreTokenizer, LeavesTheLastWhiteSpaceOfARunAloneWhereItIsNoBlank) {
  EXPECT_THAT(Pieces(" \na"), ElementsAre(" ", "\n", "a"));
  EXPECT_THAT(Pieces("\n\n\na"), ElementsAre("\n\n", "\n", "a"));
  EXPECT_THAT(Pieces("\na"), ElementsAre("\n", "a"));
  EXPECT_THAT(Pieces(Utf8(u8" \u0085a")), ElementsAre(" ", Utf8(u8"\u0085"), "a"));
}

TEST(PreTokenizer, CutsLowerCaseContractionsWithAStraightApostropheOnly) {
  EXPECT_THAT(Pieces("I'll we've it's I'd I'm you're don't"),
              ElementsAre("I", "'ll", " we", "'ve", " it", "'s", " I", "'d", " I", "'m", " you", "'re", " don", "'t"));
  EXPECT_THAT(Pieces("'Sa"), ElementsAre("'", "Sa"));
  EXPECT_THAT(Pieces("I'LL"), ElementsAre("I", "'", "LL"));
  EXPECT_THAT(Pieces(Utf8(u8"\u2019st")), ElementsAre(Utf8(u8"\u2019"), "st"));
  EXPECT_THAT(Pieces("'store"), ElementsAre("'s", "tore"));
  EXPECT_THAT(Pieces(" 's"), ElementsAre(" '", "s"));
  EXPECT_THAT(Pieces("'l 'v 'r '"), ElementsAre("'", "l", " '", "v", " '", "r", " '"));
}

TEST(PreTokenizer, KnowsLettersAndNumbersOfAllScripts) {
  EXPECT_THAT(Pieces(Utf8(u8"\u00E9n")), ElementsAre(Utf8(u8"\u00E9n")));
  EXPECT_THAT(Pieces(Utf8(u8"x\u00B2\u00B3")), ElementsAre("x", Utf8(u8"\u00B2\u00B3")));
  EXPECT_THAT(Pieces(Utf8(u8"4\u00BD")), ElementsAre(Utf8(u8"4\u00BD")));
  EXPECT_THAT(Pieces(Utf8(u8"a\u2167!")), ElementsAre("a", Utf8(u8"\u2167"), "!"));
  EXPECT_THAT(Pieces(Utf8(u8"e\u0301")), ElementsAre("e", Utf8(u8"\u0301")));
}

TEST(PreTokenizer, CutsSingleDigitsBeforeItLooksAtBlanks) {
  EXPECT_THAT(Pieces("a  12b", {.digits = Digits::kEachAlone}), ElementsAre("a", "  ", "1", "2", "b"));
  EXPECT_THAT(Pieces("a  12b", {.digits = Digits::kRuns}), ElementsAre("a", "  ", "12", "b"));
  EXPECT_THAT(Pieces("a  12b"), ElementsAre("a", " ", " 12", "b"));
}

TEST(PreTokenizer, PutsABlankBeforeEachPieceThatDigitsCut) {
  EXPECT_THAT(Pieces("a1b 2", {.digits = Digits::kEachAlone, .add_prefix_space = true}),
              ElementsAre(" a", " 1", " b", " ", " 2"));
  EXPECT_THAT(Pieces("a b", {.add_prefix_space = true}), ElementsAre(" a", " b"));
  EXPECT_THAT(Pieces(" a", {.add_prefix_space = true}), ElementsAre(" a"));
  EXPECT_THAT(Pieces("\na", {.add_prefix_space = true}), ElementsAre(" ", "\n", "a"));
  EXPECT_THAT(Pieces("", {.add_prefix_space = true}), IsEmpty());
  EXPECT_THAT(Pieces("1234567890", {.digits = Digits::kEachAlone, .add_prefix_space = true}),
              ElementsAre(" 1", " 2", " 3", " 4", " 5", " 6", " 7", " 8", " 9", " 0"));
}

TEST(PreTokenizer, LeavesTextWholeWithoutTheExpression) {
  EXPECT_THAT(Pieces("it's  a b!", {.use_regex = false}), ElementsAre("it's  a b!"));
  EXPECT_THAT(Pieces("a1b", {.digits = Digits::kRuns, .use_regex = false}), ElementsAre("a", "1", "b"));
}

}  // namespace
}  // namespace gatehouse
