#include "server/serving/text_assembler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

namespace gatehouse {
namespace {

const std::string kReplacement = "\uFFFD";

// The pieces that leave as the tokens of `tokens` arrive, and what is left at the end.
std::vector<std::string> Pieces(const std::vector<std::string>& tokens, const std::vector<std::string>& stops = {}) {
  TextAssembler assembler(stops);
  std::vector<std::string> pieces;
  for (const std::string& token : tokens) {
    if (assembler.stopped()) break;
    pieces.push_back(assembler.Append(token));
  }
  pieces.push_back(assembler.Finish());
  return pieces;
}

std::string Joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

using Strings = std::vector<std::string>;

TEST(TextAssembler, SendsACharacterThatSpansTokensOnceItIsWhole) {
  EXPECT_EQ(Pieces({"\xE6\xAD", "\xAA"}), (Strings{"", "\u6b6a", ""}));
  EXPECT_EQ(Pieces({"\xF0\x9F\x98", "\x80"}), (Strings{"", "\U0001f600", ""}));
  EXPECT_EQ(Pieces({"\xF0", "\x9F\x98", "\x80"}), (Strings{"", "", "\U0001f600", ""}));
}

TEST(TextAssembler, TakesAReplacementCharacterOfTheTextForWhatItIs) {
  EXPECT_EQ(Pieces({"a", kReplacement, "b"}), (Strings{"a", kReplacement, "b", ""}));
}

TEST(TextAssembler, ReplacesEachMaximalSubpartOnce) {
  EXPECT_EQ(Pieces({"\xF0\x9F\x98"}), (Strings{"", kReplacement}));
  EXPECT_EQ(Joined(Pieces({"\x80", "\x80"})), kReplacement + kReplacement);
  EXPECT_EQ(Joined(Pieces({"\xC0", "A"})), kReplacement + "A");
  EXPECT_EQ(Joined(Pieces({"\xED", "\x9F", "\x80"})), "\uD7C0");
  EXPECT_EQ(Joined(Pieces({"\xED", "\xA0", "\x80"})), kReplacement + kReplacement + kReplacement);
  EXPECT_EQ(Joined(Pieces({"\xF0\x9F\x98", "\xF0\x9F\x98\x80"})), kReplacement + "\U0001f600");
  EXPECT_EQ(Joined(Pieces({"\xE1\x80", "\xE1\x80\x80"})), kReplacement + "\u1000");
  EXPECT_EQ(Joined(Pieces({"\xF4\x90\x80\x80"})), kReplacement + kReplacement + kReplacement + kReplacement);
  EXPECT_EQ(Joined(Pieces({"\xE0\x80"})), kReplacement + kReplacement);
  EXPECT_EQ(Joined(Pieces({"\xFF"})), kReplacement);
}

TEST(TextAssembler, HoldsNothingBackThatCannotBeginAStop) {
  const std::string stop(200, 'Z');
  EXPECT_EQ(Pieces({"some", " text", " here"}, {stop}), (Strings{"some", " text", " here", ""}));
}

TEST(TextAssembler, HoldsBackOnlyTheBeginningOfAStop) {
  EXPECT_EQ(Pieces({"textE", "N", "x"}, {"END"}), (Strings{"text", "", "ENx", ""}));
  EXPECT_EQ(Pieces({"textEN"}, {"END"}), (Strings{"text", "EN"}));
}

TEST(TextAssembler, EndsAtTheStopThatCompletesFirstWhateverTheirOrder) {
  for (const Strings& stops : {Strings{"//", ":"}, Strings{":", "//"}}) {
    TextAssembler assembler(stops);
    EXPECT_EQ(assembler.Append("http"), "http");
    EXPECT_EQ(assembler.Append("://"), "");
    EXPECT_TRUE(assembler.stopped());
    EXPECT_EQ(assembler.matched_stop(), ":");
    EXPECT_EQ(assembler.Finish(), "");
  }
}

TEST(TextAssembler, PrefersTheStopThatBeganFirstWhereTwoCompleteTogether) {
  for (const Strings& stops : {Strings{"b", "ab"}, Strings{"ab", "b"}}) {
    TextAssembler assembler(stops);
    EXPECT_EQ(assembler.Append("xab"), "x");
    EXPECT_EQ(assembler.matched_stop(), "ab");
  }
}

TEST(TextAssembler, FindsAStopThatSpansTokensAndRestartsInsideItself) {
  EXPECT_EQ(Pieces({"aa", "ab"}, {"aab"}), (Strings{"", "a", ""}));
  EXPECT_EQ(Pieces({"EN", "D. more"}, {"END"}), (Strings{"", "", ""}));
  EXPECT_EQ(Pieces({"ababa", "bac"}, {"ababac"}), (Strings{"", "ab", ""}));
}

TEST(TextAssembler, FindsAStopOfCharactersThatAreCutByTokens) {
  EXPECT_EQ(Pieces({"x\xC3", "\xA9", "y"}, {"\u00e9"}), (Strings{"x", "", ""}));
  EXPECT_EQ(Pieces({"x\xC3", "\xA8", "y"}, {"\u00e9"}), (Strings{"x", "\u00e8", "y", ""}));
}

// What the definition says, read off the whole text.
std::string CutAtFirstStop(const std::string& text, const Strings& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(TextAssembler, AgreesWithASearchThroughTheWholeTextHoweverItIsCut) {
  std::mt19937 random(7);
  const auto word = [&random](int longest) {
    std::string text;
    const int length = 1 + static_cast<int>(random() % longest);
    for (int i = 0; i < length; ++i) text.push_back("ab"[random() % 2]);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    Strings stops;
    for (size_t i = random() % 4; i > 0; --i) stops.push_back(word(5));
    Strings tokens;
    for (size_t i = 1 + random() % 6; i > 0; --i) tokens.push_back(word(4));
    EXPECT_EQ(Joined(Pieces(tokens, stops)), CutAtFirstStop(Joined(tokens), stops)) << "round " << round;
  }
}

TEST(TextAssembler, NeverHoldsMoreThanTheLongestPossibleBeginning) {
  std::mt19937 random(11);
  const Strings stops = {"abab", "bbb"};
  TextAssembler assembler(stops);
  std::string sent, seen;
  while (!assembler.stopped() && seen.size() < 10000) {
    const std::string token(1, "abc"[random() % 3]);
    seen += token;
    sent += assembler.Append(token);
    if (assembler.stopped()) break;
    size_t hold = 0;
    for (const std::string& stop : stops) {
      for (size_t length = 1; length < stop.size() && length <= seen.size(); ++length) {
        if (seen.ends_with(stop.substr(0, length))) hold = std::max(hold, length);
      }
    }
    ASSERT_EQ(seen.size() - sent.size(), hold) << "after " << seen;
  }
}

TEST(TextAssembler, IsLinearWhereAStopKeepsAlmostMatching) {
  const std::string stop = std::string(255, 'a') + "b";
  TextAssembler assembler(Strings(16, stop));
  const std::string text(1 << 20, 'a');
  const auto start = std::chrono::steady_clock::now();
  std::string sent;
  for (size_t i = 0; i < text.size(); i += 4) sent += assembler.Append(text.substr(i, 4));
  sent += assembler.Finish();
  EXPECT_EQ(sent, text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Utf8Stream, TellsWhetherAnythingHadToBeReplaced) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\u00e9\u6b6a\U0001f600"));
  EXPECT_FALSE(IsUtf8("\xFF\xFE"));
  EXPECT_FALSE(IsUtf8("\xF0\x9F\x98"));
  EXPECT_FALSE(IsUtf8("\xC0\x80"));
}

}  // namespace
}  // namespace gatehouse
