#include "server/engine/training/schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "server/engine/training/training_batches.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using Change = TrainingStage::Change;

std::vector<int> UpTo(int count) {
  std::vector<int> layers(count);
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

TEST(Schedules, ReplaceMiddleLayersFirst) {
  EXPECT_THAT(DefaultOrder(UpTo(24)), ElementsAre(12, 11, 13, 10, 14, 9, 15, 8, 16, 7, 17, 6));
  EXPECT_THAT(DefaultOrder(UpTo(4)), ElementsAre(2, 1));
  EXPECT_THAT(DefaultOrder(UpTo(1)), ElementsAre(0));
  EXPECT_THAT(DefaultOrder({7, 3}), ElementsAre(7));
}

TEST(Schedules, LinearizeOneLayerAfterAnother) {
  TrainingMethod method;
  method.steps_per_layer = 10;
  method.final_steps = 5;
  const TrainingPlan plan = PlanTraining(method, {4, 3});
  EXPECT_EQ(plan.steps, 25);
  ASSERT_EQ(plan.stages.size(), 3u);
  EXPECT_EQ(plan.stages[1].first_step, 10);
  EXPECT_THAT(plan.stages[1].layers, ElementsAre(3));
  EXPECT_EQ(plan.stages[2].change, Change::kNone);
  EXPECT_EQ(plan.learning_rate(0), 5e-6);
  EXPECT_EQ(plan.learning_rate(24), 5e-6);
}

TEST(Schedules, TrainGatesInTheSecondPhaseWithPressureAfterAWarmUp) {
  TrainingMethod method;
  method.schedule = TrainingSchedule::kTwoPhase;
  method.steps_per_layer = 10;
  method.final_steps = 50;
  const TrainingPlan plan = PlanTraining(method, {4, 3});
  EXPECT_EQ(plan.steps, 70);
  EXPECT_THAT(plan.stages[0].layers, ElementsAre(3, 4));
  EXPECT_EQ(plan.stages[1].change, Change::kBringBack);
  EXPECT_EQ(plan.stages[1].first_step, 20);
  EXPECT_EQ(plan.learning_rate(0), 2e-5);
  EXPECT_NEAR(plan.learning_rate(10), 1e-5, 1e-12);
  EXPECT_EQ(plan.pressure(29), 0);
  EXPECT_EQ(plan.pressure(30), method.gate_pressure);
}

TEST(Schedules, GiveTheControlTheSameStepsAndNothingElse) {
  for (const TrainingSchedule schedule :
       {TrainingSchedule::kProgressive, TrainingSchedule::kTwoPhase, TrainingSchedule::kRouting}) {
    TrainingMethod method;
    method.schedule = schedule;
    const TrainingPlan plan = PlanTraining(method, {2, 1}), control = PlanControl(method, plan);
    EXPECT_EQ(control.steps, plan.steps);
    ASSERT_EQ(control.stages.size(), plan.stages.size());
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      EXPECT_EQ(control.stages[i].first_step, plan.stages[i].first_step);
      EXPECT_EQ(control.stages[i].change, Change::kNone);
    }
    EXPECT_EQ(control.learning_rate(0), plan.learning_rate(0));
    EXPECT_GT(control.learning_rate(plan.steps - 1), 0);
  }
}

TEST(TrainingBatches, GoThroughAllBlocksBeforeOneComesAgain) {
  std::vector<int32_t> tokens(70);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<int64_t> blocks = {0, 1, 3, 4, 6};
  TrainingBatches batches(tokens, blocks, 10, 2, 1);
  std::vector<int64_t> seen;
  for (int64_t step = 0; step < 10; ++step) {
    const at::Tensor batch = batches.Batch(step);
    ASSERT_EQ(batch.sizes(), at::IntArrayRef({2, 10}));
    for (const int row : {0, 1}) {
      const int64_t* ids = batch.const_data_ptr<int64_t>() + row * 10;
      EXPECT_EQ(ids[9], ids[0] + 9);
      seen.push_back(ids[0] / 10);
    }
  }
  for (size_t epoch = 0; epoch < 4; ++epoch) {
    const std::set<int64_t> once(seen.begin() + epoch * 5, seen.begin() + epoch * 5 + 5);
    EXPECT_EQ(once, std::set<int64_t>(blocks.begin(), blocks.end()));
  }
  EXPECT_NE(std::vector<int64_t>(seen.begin(), seen.begin() + 10), std::vector<int64_t>(seen.begin() + 10, seen.end()));
}

TEST(TrainingBatches, FollowFromTheSeedAndTheStepAlone) {
  std::vector<int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<int64_t> blocks(20);
  std::iota(blocks.begin(), blocks.end(), 0);
  TrainingBatches first(tokens, blocks, 10, 3, 1), again(tokens, blocks, 10, 3, 1), other(tokens, blocks, 10, 3, 2);
  again.Batch(12);
  again.Batch(1);
  EXPECT_TRUE(first.Batch(9).equal(again.Batch(9)));
  EXPECT_FALSE(first.Batch(9).equal(other.Batch(9)));
}

}  // namespace
}  // namespace gatehouse::testing
