#ifndef GATEHOUSE_TESTS_ENGINE_ANALYSIS_LOADED_PLANTED_MODEL_H_
#define GATEHOUSE_TESTS_ENGINE_ANALYSIS_LOADED_PLANTED_MODEL_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "server/engine/model/weights.h"
#include "tests/support/planted_model.h"

namespace gatehouse::testing {

// The planted model with its defaults, on the CPU in float32.
inline ModelWeights LoadPlantedModel() {
  const std::string directory =
      ::testing::TempDir() + "/planted-" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  EXPECT_TRUE(WritePlantedModel(directory, {}, 1000).ok());
  auto model = LoadModelWeights(directory, at::kFloat, at::kCPU);
  EXPECT_TRUE(model.ok()) << model.status();
  std::filesystem::remove_all(directory);
  return *std::move(model);
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_ANALYSIS_LOADED_PLANTED_MODEL_H_
