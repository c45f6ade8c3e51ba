#include "server/tokenizer/added_tokens.h"

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

// The spans as text, tokens as "id:text".
std::vector<std::string> Split(std::vector<AddedToken> tokens, std::string_view text, bool skip_special = false) {
  const AddedTokenMatcher matcher(std::move(tokens));
  std::vector<std::string> result;
  for (const AddedTokenMatcher::Span& span : matcher.Split(text, skip_special)) {
    const std::string prefix = span.id == AddedTokenMatcher::kText ? "" : std::to_string(span.id) + ":";
    result.push_back(prefix + std::string(span.text));
  }
  return result;
}

TEST(AddedTokens, FindsTheLeftmostAndOfSeveralThereTheLongest) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "ab"},
                                          {.id = 2, .content = "abcd"},
                                          {.id = 3, .content = "bcde"},
                                          {.id = 4, .content = "e"}};
  EXPECT_THAT(Split(tokens, "xabcde"), ElementsAre("x", "2:abcd", "4:e"));
  EXPECT_THAT(Split(tokens, "abcxbcde"), ElementsAre("1:ab", "cx", "3:bcde"));
  EXPECT_THAT(Split(tokens, "aabc"), ElementsAre("a", "1:ab", "c"));
  EXPECT_THAT(Split(tokens, ""), IsEmpty());
  EXPECT_THAT(Split({}, "text"), ElementsAre("text"));
}

TEST(AddedTokens, LeavesSpecialTokensAsTextWhereAskedButHidesWhatIsInside) {
  const std::vector<AddedToken> tokens = {
      {.id = 1, .content = "<s>", .special = true}, {.id = 2, .content = "s>x"}, {.id = 3, .content = "<"}};
  EXPECT_THAT(Split(tokens, "<s>x"), ElementsAre("1:<s>", "x"));
  EXPECT_THAT(Split(tokens, "<s>x", /*skip_special=*/true), ElementsAre("<s>x"));
  EXPECT_THAT(Split(tokens, "<<s>", /*skip_special=*/true), ElementsAre("3:<", "<s>"));
}

TEST(AddedTokens, TakesWhiteSpaceBesideThoseThatStrip) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "<l>", .lstrip = true},
                                          {.id = 2, .content = "<r>", .rstrip = true}};
  EXPECT_THAT(Split(tokens, "a \n<l> b"), ElementsAre("a", "1: \n<l>", " b"));
  EXPECT_THAT(Split(tokens, "a <r>\t b"), ElementsAre("a ", "2:<r>\t ", "b"));
  EXPECT_THAT(Split(tokens, Utf8(u8"a\u00A0<l>")), ElementsAre("a", Utf8(u8"1:\u00A0<l>")));
  EXPECT_THAT(Split(tokens, "<r>  <l>"), ElementsAre("2:<r>  ", "1:<l>"));
}

TEST(AddedTokens, FindsSingleWordsOnlyBetweenOtherCharacters) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "cat", .single_word = true}};
  EXPECT_THAT(Split(tokens, "cat"), ElementsAre("1:cat"));
  EXPECT_THAT(Split(tokens, "a cat."), ElementsAre("a ", "1:cat", "."));
  for (const char* text : {"cats", "scat", "cat_", "4cat"}) EXPECT_THAT(Split(tokens, text), ElementsAre(text));
  EXPECT_THAT(Split(tokens, Utf8(u8"cat\u0301")), ElementsAre(Utf8(u8"cat\u0301")));
}

TEST(AddedTokens, StaysLinearWhereEveryBlankStrips) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = " ", .lstrip = true, .rstrip = true}};
  EXPECT_EQ(Split(tokens, std::string(2000, ' ')).size(), 2000u);
  // The spans overlap, as in the reference, so only count them.
  const AddedTokenMatcher matcher(tokens);
  EXPECT_EQ(matcher.Split(std::string(1'000'000, ' '), false).size(), 1'000'000u);
}

}  // namespace
}  // namespace gatehouse
