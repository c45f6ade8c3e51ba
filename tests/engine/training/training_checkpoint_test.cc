#include "server/engine/training/training_checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "server/base/files.h"
#include "tests/engine/model/model_directory.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

const TrainingIdentity kIdentity = {{"seed", "1"}, {"learning_rate", "1e-05"}};

TrainingCheckpoint SomeCheckpoint() {
  TrainingCheckpoint checkpoint;
  checkpoint.progress.step = 7;
  checkpoint.progress.stage = 2;
  checkpoint.progress.loss_sum = 0.1 + 0.2;
  checkpoint.progress.curve = {{5, 1, 12.5, 0.25, std::numeric_limits<double>::quiet_NaN(), 1.0 / 3}};
  checkpoint.progress.fits = {{3, 0.75}};
  checkpoint.parameters = {{"a.weight", at::arange(6, at::kFloat).view({2, 3}).requires_grad_()}, {"b", at::ones({4})}};
  checkpoint.moments["b"] = {9, at::full({4}, 0.5), at::full({4}, 0.25)};
  return checkpoint;
}

TEST(TrainingCheckpoint, KeepsEverything) {
  const TemporaryFolder folder;
  const std::string path = folder.File("c.safetensors");
  const TrainingCheckpoint written = SomeCheckpoint();
  ASSERT_TRUE(WriteTrainingCheckpoint(path, kIdentity, written).ok());
  const absl::StatusOr<TrainingCheckpoint> read = ReadTrainingCheckpoint(path, kIdentity);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->progress.step, 7);
  EXPECT_EQ(read->progress.stage, 2);
  EXPECT_EQ(read->progress.loss_sum, written.progress.loss_sum);
  ASSERT_EQ(read->progress.curve.size(), 1u);
  EXPECT_TRUE(std::isnan(read->progress.curve[0].training_loss));
  EXPECT_EQ(read->progress.curve[0].gradient_norm, 1.0 / 3);
  ASSERT_EQ(read->progress.fits.size(), 1u);
  EXPECT_EQ(read->progress.fits[0].r2, 0.75);
  EXPECT_TRUE(at::equal(read->parameters.at("a.weight"), written.parameters.at("a.weight")));
  EXPECT_EQ(read->moments.at("b").steps, 9);
  EXPECT_TRUE(at::equal(read->moments.at("b").second, written.moments.at("b").second));
}

TEST(TrainingCheckpoint, IsRefusedByAnotherTraining) {
  const TemporaryFolder folder;
  const std::string path = folder.File("c.safetensors");
  ASSERT_TRUE(WriteTrainingCheckpoint(path, kIdentity, SomeCheckpoint()).ok());
  const TrainingIdentity other = {{"seed", "1"}, {"learning_rate", "2e-05"}};
  const absl::Status status = ReadTrainingCheckpoint(path, other).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_THAT(std::string(status.message()), HasSubstr("learning_rate is 1e-05 there, here 2e-05"));
  EXPECT_THAT(ReadTrainingCheckpoint(path, {{"seed", "1"}}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_THAT(ReadTrainingCheckpoint(folder.File("none"), kIdentity).status(),
              StatusIs(absl::StatusCode::kNotFound, _));
}

TEST(TrainingCheckpoint, IsRefusedWhereItIsDamaged) {
  const TemporaryFolder folder;
  const std::string path = folder.File("c.safetensors");
  ASSERT_TRUE(WriteTrainingCheckpoint(path, kIdentity, SomeCheckpoint()).ok());
  const std::string good = ReadFile(path).value();
  // A flipped bit, wherever it is, must not go unnoticed.
  for (size_t place = 0; place < good.size(); place += 3) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 4);
    folder.Write("c.safetensors", bad);
    EXPECT_FALSE(ReadTrainingCheckpoint(path, kIdentity).ok()) << "byte " << place;
  }
  for (const size_t length : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
    folder.Write("c.safetensors", good.substr(0, length));
    EXPECT_THAT(ReadTrainingCheckpoint(path, kIdentity).status(), StatusIs(absl::StatusCode::kInvalidArgument, _))
        << length;
  }
}

}  // namespace
}  // namespace gatehouse::testing
