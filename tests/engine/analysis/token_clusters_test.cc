#include "server/engine/analysis/token_clusters.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

namespace gatehouse {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kNeurons = 48;

// Tokens around `centres`, sizes[i] of them around the i-th, in turns.
at::Tensor Around(const at::Tensor& centres, const std::vector<int64_t>& sizes, double spread, at::Generator random) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(centres[static_cast<int64_t>(i)] + spread * at::randn({sizes[i], kNeurons}, random));
  }
  return at::cat(parts);
}

TEST(TokenClusters, RecoversPlantedClustersExactly) {
  const at::Generator random = at::detail::createCPUGenerator(1);
  const at::Tensor centres = 3 * at::randn({3, kNeurons}, random);
  const TokenClusters clusters = ClusterPatterns(Around(centres, {60, 200, 100}, 0.5, random), 3, 7);
  EXPECT_TRUE(clusters.HaveStructure());
  EXPECT_THAT(clusters.sizes, ElementsAre(200, 100, 60));
  std::vector<int> expected(60, 2);
  expected.insert(expected.end(), 200, 0);
  expected.insert(expected.end(), 100, 1);
  EXPECT_EQ(clusters.assignment, expected);
  EXPECT_GT(clusters.silhouette, 0.6);
  EXPECT_GT(clusters.explained, 0.8);
  EXPECT_LT(clusters.null_highest, 0.5);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(clusters.central[i].size(), 3u);
    for (const int64_t token : clusters.central[i]) EXPECT_EQ(clusters.assignment[token], static_cast<int>(i));
  }
}

TEST(TokenClusters, APatternIsADirectionWhateverItsLength) {
  const at::Generator random = at::detail::createCPUGenerator(2);
  const at::Tensor centres = 3 * at::randn({2, kNeurons}, random);
  const at::Tensor tokens = Around(centres, {100, 80}, 0.5, random);
  const at::Tensor scaled = tokens * (at::rand({180, 1}, random) * 10 + 0.1);
  EXPECT_EQ(ClusterPatterns(tokens, 2, 7).assignment, ClusterPatterns(scaled, 2, 7).assignment);
}

TEST(TokenClusters, ClaimsNothingOnNoise) {
  int claimed = 0;
  for (int seed = 1; seed <= 6; ++seed) {
    const at::Generator random = at::detail::createCPUGenerator(seed);
    // Correlated, and much longer in some directions than in others: still one cloud, far enough
    // from 0 that directions are one cloud too.
    const at::Tensor mix = at::randn({kNeurons, kNeurons}, random) / at::arange(1, kNeurons + 1).unsqueeze(1);
    const TokenClusters clusters = ClusterPatterns(at::mm(at::randn({300, kNeurons}, random), mix) + 10, 4, seed);
    claimed += clusters.HaveStructure();
    EXPECT_NEAR(clusters.silhouette, clusters.null_mean, 0.05) << seed;
  }
  EXPECT_LE(claimed, 1);  // by chance one in twenty
}

TEST(TokenClusters, OfEqualTokensHaveNoStructure) {
  EXPECT_FALSE(ClusterPatterns(at::ones({60, kNeurons}), 4, 1).HaveStructure());
  EXPECT_FALSE(ClusterPatterns(at::zeros({60, kNeurons}), 4, 1).HaveStructure());
}

TEST(TokenClusters, TheSameSeedFindsTheSame) {
  const at::Generator random = at::detail::createCPUGenerator(3);
  const at::Tensor tokens = at::randn({120, kNeurons}, random);
  const TokenClusters one = ClusterPatterns(tokens, 5, 11), two = ClusterPatterns(tokens, 5, 11);
  EXPECT_EQ(one.assignment, two.assignment);
  EXPECT_EQ(one.null_highest, two.null_highest);
}

}  // namespace
}  // namespace gatehouse
