#include "client/cli/parse.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/status_matchers.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseLayers, TakesNumbersAndRangesInAnyOrderOnce) {
  EXPECT_THAT(*ParseLayers("3,5-8"), ElementsAre(3, 5, 6, 7, 8));
  EXPECT_THAT(*ParseLayers("8,5-6, 6"), ElementsAre(5, 6, 8));
  EXPECT_THAT(*ParseLayers("0"), ElementsAre(0));
}

TEST(ParseLayers, QuotesThePartThatIsWrong) {
  EXPECT_THAT(ParseLayers(""), StatusIs(kInvalid, HasSubstr("''")));
  EXPECT_THAT(ParseLayers("1,,2"), StatusIs(kInvalid, HasSubstr("''")));
  EXPECT_THAT(ParseLayers("1,x"), StatusIs(kInvalid, HasSubstr("'x'")));
  EXPECT_THAT(ParseLayers("-1"), StatusIs(kInvalid, HasSubstr("''")));
  EXPECT_THAT(ParseLayers("5-3"), StatusIs(kInvalid, HasSubstr("'5-3'")));
  EXPECT_THAT(ParseLayers("0-4000000000"), StatusIs(kInvalid, HasSubstr("layer of any model")));
  EXPECT_THAT(ParseLayers("99999999999"), StatusIs(kInvalid, HasSubstr("'99999999999'")));
}

TEST(ParseTokenIds, LeavesTheRangeToTheServerAndRefusesWhatIsNoInt32) {
  EXPECT_THAT(*ParseTokenIds("5, 6,7"), ElementsAre(5, 6, 7));
  EXPECT_THAT(*ParseTokenIds("-1,2147483647"), ElementsAre(-1, 2147483647));
  EXPECT_THAT(ParseTokenIds("2147483648"), StatusIs(kInvalid, HasSubstr("'2147483648'")));
  EXPECT_THAT(ParseTokenIds("5,6,"), StatusIs(kInvalid, HasSubstr("''")));
}

TEST(ParseOrder, KeepsTheOrder) {
  EXPECT_THAT(*ParseOrder("12, 11,13"), ElementsAre(12, 11, 13));
  EXPECT_THAT(ParseOrder("1-3"), StatusIs(kInvalid, HasSubstr("'1-3'")));
}

TEST(ParseWholeNumber, NamesTheBoundsOfWhatItRefuses) {
  EXPECT_EQ(ParseWholeNumber("0", 9).value(), 0u);
  EXPECT_EQ(ParseWholeNumber("010", 10).value(), 10u);
  EXPECT_EQ(ParseWholeNumber("18446744073709551615", UINT64_MAX).value(), UINT64_MAX);
  for (const char* bad : {"-1", "10", "18446744073709551616", "1e3", "0x5", "1.5", "", "x"}) {
    EXPECT_EQ(ParseWholeNumber(bad, 9).status().message(),
              "'" + std::string(bad) + "' is not a whole number in [0, 9]");
  }
  EXPECT_FALSE(ParseWholeNumber("18446744073709551616", UINT64_MAX).ok());
}

TEST(ParseCounts, CallsThemWholeNumbers) {
  EXPECT_THAT(ParseCounts("6,2").value(), ElementsAre(6, 2));
  EXPECT_THAT(std::string(ParseCounts("6,-1").status().message()), HasSubstr("'-1' is not a whole number in [0,"));
}

TEST(ParseNumbers, TakesAListOfThem) {
  EXPECT_THAT(*ParseNumbers("0.1,0.5, 1"), ElementsAre(0.1, 0.5, 1));
  EXPECT_THAT(ParseNumbers("0.1;0.5"), StatusIs(kInvalid, HasSubstr("'0.1;0.5'")));
}

TEST(ParseShare, TakesPercentAndRatios) {
  EXPECT_EQ(*ParseShare("1%"), 0.01);
  EXPECT_EQ(*ParseShare("0.5%"), 0.005);
  EXPECT_EQ(*ParseShare("0.05"), 0.05);
  EXPECT_THAT(ParseShare("%"), StatusIs(kInvalid, HasSubstr("''")));
  EXPECT_THAT(ParseShare("1%%"), StatusIs(kInvalid, HasSubstr("'1%'")));
}

TEST(ParseLayerThreshold, GivesEachLayerOfARangeTheThreshold) {
  EXPECT_THAT(*ParseLayerThreshold("5=0.7"), ElementsAre(Pair(5, 0.7f)));
  EXPECT_THAT(*ParseLayerThreshold("2-3=1"), ElementsAre(Pair(2, 1.f), Pair(3, 1.f)));
  EXPECT_THAT(ParseLayerThreshold("5"), StatusIs(kInvalid, HasSubstr("LAYERS=THRESHOLD")));
  EXPECT_THAT(ParseLayerThreshold("5=high"), StatusIs(kInvalid, HasSubstr("'high'")));
  EXPECT_THAT(ParseLayerThreshold("=0.5"), StatusIs(kInvalid, HasSubstr("''")));
}

TEST(ParseLogitBias, TakesMinusInfinityForNever) {
  EXPECT_THAT(*ParseLogitBias("11=-2.5"), Pair(11, -2.5f));
  EXPECT_THAT(*ParseLogitBias("11=-inf"), Pair(11, -INFINITY));
  EXPECT_THAT(ParseLogitBias("11:2"), StatusIs(kInvalid, HasSubstr("TOKEN_ID=BIAS")));
}

TEST(ParseWords, NamesTheWordsThereAre) {
  EXPECT_THAT(*ParseWords("a, b", {"a", "b"}), ElementsAre("a", "b"));
  EXPECT_THAT(ParseWords("a,c", {"a", "b"}), StatusIs(kInvalid, HasSubstr("'c' is not one of a, b")));
}

}  // namespace
}  // namespace gatehouse::cli
