#include "client/utf8.h"

#include <gtest/gtest.h>

namespace gatehouse::client {
namespace {

TEST(Utf8, FindsTheFirstByteThatIsNotPartOfACharacter) {
  EXPECT_EQ(FindInvalidUtf8("plain, \u00e9, \u6b6a, \U0001f600"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8(""), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("ab\xFF\xFE"), 2u);
  EXPECT_EQ(FindInvalidUtf8("ab\xF0\x9F\x98"), 2u);    // ends in the middle of a character
  EXPECT_EQ(FindInvalidUtf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(FindInvalidUtf8("\xED\xA0\x80"), 0u);      // a surrogate
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // past U+10FFFF
  EXPECT_EQ(FindInvalidUtf8(std::string_view("a\0b", 3)), std::string_view::npos);
}

TEST(Utf8, ReplacesEachMaximalPartByOneSign) {
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98"), "\ufffd");
  EXPECT_EQ(ReplaceInvalidUtf8("\x98\x98"), "\ufffd\ufffd");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x80 A"), "\ufffd A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\xF0\x9F\x98\x80"), "\ufffd\U0001f600");
  EXPECT_EQ(ReplaceInvalidUtf8("a\ufffd"
                               "b"),
            "a\ufffd"
            "b");
}

TEST(Utf8, ChecksATextCutAnywhere) {
  const std::string text = "a\u00e9\u6b6a\U0001f600z";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Checker checker;
    EXPECT_TRUE(checker.Feed(std::string_view(text).substr(0, cut))) << cut;
    EXPECT_TRUE(checker.Feed(std::string_view(text).substr(cut))) << cut;
    EXPECT_TRUE(checker.Finish()) << cut;
  }
}

TEST(Utf8, SaysWhereACutTextIsInvalid) {
  Utf8Checker checker;
  EXPECT_TRUE(checker.Feed("ab\xE6\xAD"));
  EXPECT_FALSE(checker.Feed("c"));
  EXPECT_EQ(checker.invalid_offset(), 2u);
  EXPECT_FALSE(checker.Feed("fine"));

  Utf8Checker unfinished;
  EXPECT_TRUE(unfinished.Feed("abc\xE6\xAD"));
  EXPECT_FALSE(unfinished.Finish());
  EXPECT_EQ(unfinished.invalid_offset(), 3u);
}

}  // namespace
}  // namespace gatehouse::client
