#include "server/engine/analysis/split_stream.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "server/engine/analysis/linearization_cost.h"
#include "server/engine/training/plain_forward.h"
#include "tests/support/planted_model.h"

namespace gatehouse {
namespace {

constexpr int kWindow = 64;

// A planted model, a corpus and a stream over some of its blocks.
class SplitStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string directory =
        ::testing::TempDir() + "/stream-" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    ASSERT_TRUE(testing::WritePlantedModel(directory, {.sink = true}, 100).ok());
    auto model = LoadModelWeights(directory, at::kFloat, at::kCPU);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    std::filesystem::remove_all(directory);
  }

  // More blocks than a batch holds.
  SplitStream Stream() {
    std::vector<int64_t> blocks;
    for (int64_t block = 1; block < 80; block += 2) blocks.push_back(block);
    return SplitStream(model_, tokens_, blocks, kWindow);
  }

  const std::vector<int32_t> tokens_ = testing::PlantedCorpus(80 * kWindow, 3);
  const std::atomic<bool> cancelled_{false};
  const ProgressFn progress_;
  Work work_{1, progress_, cancelled_};
  ModelWeights model_;
};

double Difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST_F(SplitStreamTest, GivesEachLayerTheInputItHasInTheWholeModel) {
  SplitStream stream = Stream();
  std::vector<at::Tensor> read(4);
  const std::vector<int64_t> last(tokens_.end() - kWindow, tokens_.end());
  PlainForward(model_, at::tensor(last).unsqueeze(0), [&](int layer, const at::Tensor& x) {
    read[layer] = x;
    return PlainMlp(model_, layer, x);
  });
  for (int layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(stream.Enter(layer, work_).ok());
    EXPECT_LT(Difference(stream.x()[-1], read[layer][0]), 1e-4) << layer;
    ASSERT_TRUE(stream.Leave(work_).ok());
  }
}

TEST_F(SplitStreamTest, ALayerReplacedByItselfChangesNothing) {
  SplitStream stream = Stream();
  ASSERT_TRUE(stream.MeasureFull(work_).ok());
  EXPECT_EQ(stream.full_cross_entropy().sizes(), at::IntArrayRef({40, kWindow - 1}));
  for (int layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(stream.Enter(layer, work_).ok());
    const auto same = stream.CrossEntropyWith([&](const at::Tensor& x) { return PlainMlp(model_, layer, x); }, work_);
    ASSERT_TRUE(same.ok());
    EXPECT_LT(Difference(*same, stream.full_cross_entropy()), 1e-4) << layer;
    ASSERT_TRUE(stream.Leave(work_).ok());
  }
}

TEST_F(SplitStreamTest, SinksRunInFullWhateverTheSurrogateSays) {
  SplitStream stream = Stream();
  ASSERT_TRUE(stream.MeasureFull(work_).ok());
  ASSERT_TRUE(stream.Enter(0, work_).ok());
  const Surrogate nonsense{at::randn({64, 64}) * 9, at::randn({64}) * 9, at::zeros({64}, at::kDouble)};
  const LogisticGate always{at::zeros({64}), at::full({1}, 9.0)};
  for (const int sinks : {0, 7, kWindow}) {
    // Attention looks back only, so the predictions of the sinks stay as they were.
    const auto linear = LinearCrossEntropy(model_, 0, stream, nonsense, sinks, work_);
    const auto gated = GatedCrossEntropy(model_, 0, stream, nonsense, always, sinks, work_);
    ASSERT_TRUE(linear.ok() && gated.ok());
    const at::Tensor change = (*linear - stream.full_cross_entropy()).abs();
    const int64_t predicted = std::min(sinks, kWindow - 1);
    EXPECT_LT(change.narrow(1, 0, predicted).sum().item<double>(), 1e-2) << sinks;
    if (sinks < kWindow) {
      EXPECT_GT(change.narrow(1, sinks, kWindow - 1 - sinks).mean().item<double>(), 0.1) << sinks;
    }
    EXPECT_LT(Difference(gated->cross_entropy, *linear), 1e-4) << sinks;
    EXPECT_DOUBLE_EQ(gated->linear_fraction, (kWindow - sinks) / static_cast<double>(kWindow));
  }
}

TEST_F(SplitStreamTest, PerplexityChangeIsOfTheMeanCrossEntropy) {
  const at::Tensor full = at::tensor({1.0, 3.0}, at::kDouble), other = at::tensor({1.5, 2.7}, at::kDouble);
  EXPECT_NEAR(PerplexityChange(full, other), std::exp(0.1) - 1, 1e-12);
}

}  // namespace
}  // namespace gatehouse
