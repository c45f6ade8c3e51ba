#include "server/engine/analysis/corpus_splits.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

ModelConfig SmallModel() {
  ModelConfig config;
  config.d_model = 64;
  config.context = 128;
  return config;
}

template <typename T>
CalibrateOptions WithOption(T CalibrateOptions::*member, T value) {
  CalibrateOptions options;
  options.*member = value;
  return options;
}

std::set<int64_t> AllBlocks(const CorpusSplits& splits) {
  std::set<int64_t> blocks;
  for (const auto* part : {&splits.fit, &splits.gate, &splits.select, &splits.report}) {
    blocks.insert(part->begin(), part->end());
  }
  return blocks;
}

size_t Count(const CorpusSplits& splits) {
  return splits.fit.size() + splits.gate.size() + splits.select.size() + splits.report.size();
}

TEST(CorpusSplits, TakeTheirDefaultSizesFromALongCorpusAndSpreadOverAllOfIt) {
  const auto splits = PlanSplits({}, 1'000'000, SmallModel());
  ASSERT_TRUE(splits.ok()) << splits.status();
  EXPECT_EQ(splits->window, 128);
  EXPECT_EQ(splits->fit.size(), 79u);    // 10,000 tokens
  EXPECT_EQ(splits->gate.size(), 196u);  // 25,000
  EXPECT_EQ(splits->select.size(), 40u);
  EXPECT_EQ(splits->report.size(), 40u);
  const std::set<int64_t> blocks = AllBlocks(*splits);
  EXPECT_EQ(blocks.size(), Count(*splits)) << "a block serves two purposes";
  EXPECT_GT(*blocks.rbegin(), 1'000'000 / 128 * 99 / 100);
  EXPECT_LT(*blocks.rbegin(), 1'000'000 / 128);
}

TEST(CorpusSplits, NeedACorpusOfMoreThanOneToken) {
  std::vector<int32_t> tokens(1000, 7);
  for (const size_t count : {size_t{1}, tokens.size()}) {
    EXPECT_THAT(CheckVariety({tokens.data(), count}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is one token, " + std::to_string(count))));
  }
  tokens.back() = 8;
  EXPECT_TRUE(CheckVariety(tokens).ok());
}

TEST(CorpusSplits, ShrinkInProportionWhereTheCorpusIsShorter) {
  const auto splits = PlanSplits({}, 100 * 128 + 127, SmallModel());
  ASSERT_TRUE(splits.ok()) << splits.status();
  EXPECT_EQ(Count(*splits), 100u);
  EXPECT_EQ(AllBlocks(*splits).size(), 100u);
  EXPECT_NEAR(splits->fit.size(), 22, 1);
  EXPECT_NEAR(splits->gate.size(), 55, 1);
  EXPECT_NEAR(splits->select.size(), 11, 1);
  EXPECT_NEAR(splits->report.size(), 11, 1);
}

TEST(CorpusSplits, RefuseACorpusThatIsTooShortAndSayHowMuchIsNeeded) {
  // Fit needs 2 · 64 tokens beside 4 sinks a block: 2 blocks; one for each other split.
  EXPECT_TRUE(PlanSplits({}, 5 * 128, SmallModel()).ok());
  EXPECT_THAT(PlanSplits({}, 5 * 128 - 1, SmallModel()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("the corpus has 639 tokens"), HasSubstr("at least 640"))));
  EXPECT_THAT(PlanSplits({}, 0, SmallModel()), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("640")));
}

TEST(CorpusSplits, DoNotShrinkASizeThatWasAskedFor) {
  CalibrateOptions options;
  options.gate_tokens = 20 * 128;
  const auto splits = PlanSplits(options, 30 * 128, SmallModel());
  ASSERT_TRUE(splits.ok()) << splits.status();
  EXPECT_EQ(splits->gate.size(), 20u);
  EXPECT_EQ(Count(*splits), 30u);
  EXPECT_THAT(PlanSplits(options, 20 * 128, SmallModel()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gate 2560")));
}

TEST(CorpusSplits, NameTheOptionThatIsOutOfRange) {
  const auto refuses = [](CalibrateOptions options, const char* name) {
    EXPECT_THAT(PlanSplits(options, 1'000'000, SmallModel()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  refuses(WithOption<int64_t>(&CalibrateOptions::fit_tokens, -1), "fit_tokens");
  refuses(WithOption<int64_t>(&CalibrateOptions::fit_tokens, 100), "fit_tokens");
  refuses(WithOption<int64_t>(&CalibrateOptions::gate_tokens, int64_t{1} << 40), "gate_tokens");
  refuses(WithOption<int64_t>(&CalibrateOptions::select_tokens, -5), "select_tokens");
  refuses(WithOption<int64_t>(&CalibrateOptions::report_tokens, INT64_MIN), "report_tokens");
  refuses(WithOption(&CalibrateOptions::window_tokens, 129), "window_tokens");
  refuses(WithOption(&CalibrateOptions::window_tokens, 5), "window_tokens");
  refuses(WithOption(&CalibrateOptions::window_tokens, -1), "window_tokens");
}

TEST(CorpusSplits, DependOnTheSeedAndOnNothingElse) {
  const auto first = PlanSplits(WithOption<uint64_t>(&CalibrateOptions::seed, 1), 50'000, SmallModel());
  const auto again = PlanSplits(WithOption<uint64_t>(&CalibrateOptions::seed, 1), 50'000, SmallModel());
  const auto other = PlanSplits(WithOption<uint64_t>(&CalibrateOptions::seed, 2), 50'000, SmallModel());
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(first->fit, again->fit);
  EXPECT_NE(first->fit, other->fit);
}

TEST(CorpusSplits, OfOneReportBlockHaveNoIntervals) {
  CorpusSplits splits;
  splits.window = 128;
  splits.report = {3};
  EXPECT_THAT(CheckIntervalsExist(splits),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("report_tokens"), HasSubstr("128"))));
  splits.report = {3, 5};
  EXPECT_TRUE(CheckIntervalsExist(splits).ok());
}

}  // namespace
}  // namespace gatehouse
