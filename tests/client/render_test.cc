#include "client/cli/render.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "client/cli/heat.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/terminal.h"

namespace gatehouse::cli {
namespace {

struct Screen {
  std::ostringstream out, err;
  Terminal terminal{.out = out, .err = err};
};

TEST(Terminal, CountsWideCharactersTwiceAndCombiningOnesNotAtAll) {
  EXPECT_EQ(DisplayWidth("abc"), 3);
  EXPECT_EQ(DisplayWidth("\u6b6a"), 2);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);
  EXPECT_EQ(DisplayWidth("█▁·"), 3);
}

TEST(Terminal, PadsAndCutsByColumns) {
  EXPECT_EQ(PadRight("\u6b6a", 4), "\u6b6a  ");
  EXPECT_EQ(PadLeft("7", 3), "  7");
  EXPECT_EQ(Truncate("abcdef", 4), "abc…");
  EXPECT_EQ(Truncate("\u6b6a\u6b6a\u6b6a", 4), "\u6b6a…");
  EXPECT_EQ(Truncate("abcd", 4), "abcd");
}

TEST(Terminal, ShowsWhatWouldDriveItAsEscapes) {
  EXPECT_EQ(EscapeControls("a\x1b[2Jb\r\x07"), "a\\x1b[2Jb\\x0d\\x07");
  EXPECT_EQ(EscapeControls("line\n\ttab"), "line\n\ttab");
  EXPECT_EQ(EscapeControls("\u009b2J\u202eabc"), "\\u009b2J\\u202eabc");
  EXPECT_EQ(EscapeControls("\xFF caf\u00e9"), "\ufffd caf\u00e9");
  EXPECT_EQ(OneLine("a\nb\tc\x7f"), "a⏎b→c\\x7f");
}

TEST(Terminal, ColoursOnlyWhereAsked) {
  Screen screen;
  EXPECT_EQ(screen.terminal.Paint(kBold, "x"), "x");
  screen.terminal.out_color = true;
  EXPECT_EQ(screen.terminal.Paint(kBold, "x"), "\x1b[1mx\x1b[0m");
  EXPECT_EQ(screen.terminal.Paint({.foreground = 3, .background = 4}, "x"), "\x1b[38;5;3;48;5;4mx\x1b[0m");
  EXPECT_EQ(screen.terminal.Paint(kPlain, "x"), "x");
}

TEST(Table, MakesColumnsAsWideAsTheirWidestCell) {
  Screen screen;
  Table table({{"name"}, {"n", true}, {"last"}});
  table.Add({{"a", kPlain}, {"1", kPlain}, {"x", kPlain}});
  table.Add({{"long", kPlain}, {"200", kPlain}, {"y", kPlain}});
  table.Print(screen.terminal, 1);
  EXPECT_EQ(screen.out.str(),
            " name    n  last\n"
            " a       1  x\n"
            " long  200  y\n");
}

TEST(Table, FoldsColumnsThatTheTerminalIsTooNarrowFor) {
  Screen screen;
  screen.terminal.width = 13;
  Table table({{"id"}, {"one", true}, {"two", true}, {"three", true}});
  table.Add({{"a", kPlain}, {"1", kPlain}, {"2", kPlain}, {"3", kPlain}});
  table.PrintFolded(screen.terminal, 1, 1);
  EXPECT_EQ(screen.out.str(),
            " id  one  two\n"
            " a     1    2\n"
            "\n"
            " id  three\n"
            " a       3\n");
  screen.out.str("");
  table.PrintFolded(screen.terminal, 1, 2);
  EXPECT_EQ(screen.out.str(),
            " id  one  two\n"
            " a     1    2\n"
            "\n"
            " id  one  three\n"
            " a     1      3\n");
}

TEST(HeatMap, WrapsAtTheWidthUnderARulerOfPositions) {
  Screen screen;
  screen.terminal.width = 24;
  std::vector<HeatRow> rows = {{"L0", {}}, {"L10", {}}};
  for (int i = 0; i < 23; ++i) {
    rows[0].cells.push_back(PathCell(i % 2 == 0 ? v1::MLP_PATH_FULL : v1::MLP_PATH_LINEAR));
    rows[1].cells.push_back(HeightCell(i / 22.0));
  }
  PrintHeatMap(screen.terminal, rows);
  EXPECT_EQ(screen.out.str(),
            "    0         10\n"
            " L0 █░█░█░█░█░█░█░█░█░█░\n"
            "L10 ▁▁▁▂▂▂▃▃▃▄▄▅▅▅▆▆▆▇▇▇\n"
            "\n"
            "    20\n"
            " L0 █░█\n"
            "L10 ███\n");
}

v1::NonlinearityPercentiles Percentiles() {
  v1::NonlinearityPercentiles percentiles;
  percentiles.set_p25(1);
  percentiles.set_p50(2);
  percentiles.set_p70(4);
  percentiles.set_p95(8);
  return percentiles;
}

TEST(Percentile, IsExactAtTheKnotsAndGrowsBetweenThem) {
  EXPECT_DOUBLE_EQ(PercentileOf(Percentiles(), 0), 0);
  EXPECT_DOUBLE_EQ(PercentileOf(Percentiles(), 1), 0.25);
  EXPECT_DOUBLE_EQ(PercentileOf(Percentiles(), 3), 0.60);
  EXPECT_DOUBLE_EQ(PercentileOf(Percentiles(), 8), 0.95);
  EXPECT_DOUBLE_EQ(PercentileOf(Percentiles(), 16), 0.975);
  EXPECT_LE(PercentileOf(Percentiles(), INFINITY), 1);
  EXPECT_TRUE(std::isnan(PercentileOf(Percentiles(), NAN)));
}

TEST(Percentile, SurvivesALayerThatIsExactlyLinear) {
  const v1::NonlinearityPercentiles zeros;
  EXPECT_GE(PercentileOf(zeros, 0), 0);
  EXPECT_LE(PercentileOf(zeros, 0), 1);
  EXPECT_DOUBLE_EQ(PercentileOf(zeros, 1), 1);
}

TEST(Cells, ShowWhatIsNotKnownAsADot) {
  EXPECT_EQ(PercentileCell(NAN).glyph, "·");
  EXPECT_EQ(LevelCell(-1, 7, false).glyph, "·");
  EXPECT_EQ(LevelCell(0, 7, false).glyph, "▁");
  EXPECT_EQ(LevelCell(7, 7, false).glyph, "█");
  EXPECT_EQ(LevelCell(3, 7, true).glyph, "✱");
}

TEST(TokenTexts, CarriesTheBytesOfACutCharacterToTheTokenThatCompletesIt) {
  TokenTexts texts;
  EXPECT_EQ(texts.Next("\xE6\xAD"), "");
  EXPECT_EQ(texts.Next("\xAA\n"), "\u6b6a⏎");
  EXPECT_EQ(texts.Next("\xFF"), "\ufffd");
}

TEST(Progress, PrintsOneLineAStageWhereThereIsNoTerminal) {
  Screen screen;
  ProgressBar bar(screen.terminal);
  const absl::Time start = absl::FromUnixSeconds(1000);
  bar.Update(0, "uploading", start);
  bar.Update(0.1, "surrogates", start);
  bar.Update(0.2, "surrogates", start);
  bar.Update(0.5, "gates", start);
  EXPECT_EQ(screen.err.str(), "  0%  uploading\n 10%  surrogates\n 50%  gates\n");
}

TEST(Progress, ShowsABarWithTheTimeLeftOnATerminal) {
  Screen screen;
  screen.terminal.err_is_terminal = true;
  screen.terminal.width = 60;
  const absl::Time start = absl::FromUnixSeconds(1000);
  {
    ProgressBar bar(screen.terminal);
    bar.Update(0, "gates", start);
    screen.err.str("");
    bar.Update(0.25, "gates", start + absl::Seconds(20));
    EXPECT_EQ(screen.err.str(), "\r\x1b[K█████                 25%  gates  1:00 left");
    screen.err.str("");
    bar.Update(2, "gates", start + absl::Seconds(80));
    EXPECT_EQ(screen.err.str(), "\r\x1b[K████████████████████ 100%  gates  0:00 left");
    screen.err.str("");
  }
  EXPECT_EQ(screen.err.str(), "\r\x1b[K");  // gone, so that other text can follow
}

TEST(Progress, FormatsTimes) {
  EXPECT_EQ(FormatClock(absl::Seconds(5)), "0:05");
  EXPECT_EQ(FormatClock(absl::Milliseconds(61500)), "1:02");
  EXPECT_EQ(FormatClock(absl::Seconds(3723)), "1:02:03");
  EXPECT_EQ(FormatClock(-absl::Seconds(1)), "0:00");
}

TEST(Numbers, AreShownForPeople) {
  EXPECT_EQ(Count(1, "token"), "1 token");
  EXPECT_EQ(Count(0, "token"), "0 tokens");
  EXPECT_EQ(Percent(0.375, 1), "37.5%");
  EXPECT_EQ(Percent(NAN, 1), "–");
  EXPECT_EQ(HumanCount(7123456), "7.1M");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
}

}  // namespace
}  // namespace gatehouse::cli
