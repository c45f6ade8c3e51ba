#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_CLUSTERS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_CLUSTERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gatehouse {

// Clusters of tokens by their activation patterns ("The Discrete Charm of the MLP", methods
// B.3), and whether there are any: k-means finds k groups in whatever it is given.

// Principal components of the patterns that are clustered, at most.
inline constexpr int64_t kPatternComponents = 32;
// Clouds without clusters that the patterns are compared with; all of them are beaten by
// chance once in kClusterNulls + 1 times.
inline constexpr int kClusterNulls = 19;

struct TokenClusters {
  // The largest cluster is 0.
  std::vector<int> assignment;                // one a token
  std::vector<int64_t> sizes;                 // one a cluster, as the next two
  std::vector<double> silhouettes;            // mean over its tokens
  std::vector<std::vector<int64_t>> central;  // its tokens nearest to its centre, at most 3
  double variance = 0;                        // share of the patterns' variance in the components
  double explained = 0;                       // share of the components' variance that lies between clusters
  double silhouette = 0;                      // mean over all tokens
  // The same of clouds drawn from one normal distribution with the patterns' covariance.
  double null_mean = 0, null_highest = 0;

  // Without it there is nothing to see in the clusters.
  bool HaveStructure() const { return silhouette > null_highest; }
};

// The fewest tokens that can be clustered.
int64_t FewestToCluster(int clusters);

// A token's pattern is its activations scaled to unit length: which neurons, and in what
// proportion.  activations: [n, d_mlp] floating point, n ≥ FewestToCluster.
TokenClusters ClusterPatterns(const at::Tensor& activations, int clusters, uint64_t seed);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_TOKEN_CLUSTERS_H_
