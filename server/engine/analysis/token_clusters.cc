#include "server/engine/analysis/token_clusters.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <span>

#include "server/engine/analysis/statistics.h"

namespace gatehouse {
namespace {

constexpr int kRestarts = 8;
constexpr int kMostRounds = 100;
constexpr size_t kCentral = 3;

// Points as rows.
struct Cloud {
  int64_t n = 0, dims = 0;
  std::vector<double> values;  // row-major

  std::span<const double> Row(int64_t i) const { return std::span(values).subspan(i * dims, dims); }
  static Cloud Of(const at::Tensor& points) {  // [n, dims] float64 on the CPU
    const at::Tensor rows = points.contiguous();
    return {rows.size(0), rows.size(1), {rows.const_data_ptr<double>(), rows.const_data_ptr<double>() + rows.numel()}};
  }
};

double SquaredDistance(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// In [0, 1), the same on every platform.
double Uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

double Normal(std::mt19937_64& random) {  // Box-Muller
  const double radius = std::sqrt(-2 * std::log1p(-Uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * Uniform(random));
}

struct Partition {
  std::vector<int> assignment;
  Cloud centres;
  double inertia = std::numeric_limits<double>::infinity();
};

// k-means++: each further centre is a point drawn in proportion to its squared distance from
// the centres there are.
Cloud SeedCentres(const Cloud& points, int k, std::mt19937_64& random) {
  Cloud centres{k, points.dims, {}};
  std::vector<double> distance(points.n, std::numeric_limits<double>::infinity());
  int64_t next = static_cast<int64_t>(Uniform(random) * static_cast<double>(points.n));
  for (int c = 0; c < k; ++c) {
    const std::span<const double> centre = points.Row(next);
    centres.values.insert(centres.values.end(), centre.begin(), centre.end());
    for (int64_t i = 0; i < points.n; ++i) distance[i] = std::min(distance[i], SquaredDistance(points.Row(i), centre));
    double left = Uniform(random) * std::reduce(distance.begin(), distance.end());
    next = 0;
    while (next + 1 < points.n && (left -= distance[next]) >= 0) ++next;
  }
  return centres;
}

// Moves each centre to the mean of its points; one without any takes the point that is
// farthest from its own.
void MoveCentres(const Cloud& points, const std::vector<int>& assignment, std::vector<double> distance,
                 Cloud& centres) {
  std::vector<int64_t> sizes(centres.n, 0);
  std::fill(centres.values.begin(), centres.values.end(), 0);
  for (int64_t i = 0; i < points.n; ++i) {
    ++sizes[assignment[i]];
    const std::span<const double> point = points.Row(i);
    double* centre = centres.values.data() + assignment[i] * centres.dims;
    for (int64_t j = 0; j < points.dims; ++j) centre[j] += point[j];
  }
  for (int64_t c = 0; c < centres.n; ++c) {
    double* centre = centres.values.data() + c * centres.dims;
    if (sizes[c] > 0) {
      for (int64_t j = 0; j < centres.dims; ++j) centre[j] /= static_cast<double>(sizes[c]);
    } else {
      const auto farthest = std::max_element(distance.begin(), distance.end());
      std::copy_n(points.Row(farthest - distance.begin()).begin(), centres.dims, centre);
      *farthest = 0;
    }
  }
}

// Lloyd's algorithm from one seeding.
Partition Settle(const Cloud& points, int k, std::mt19937_64& random) {
  Partition partition{std::vector<int>(points.n, -1), SeedCentres(points, k, random)};
  std::vector<double> distance(points.n);
  for (int round = 0; round < kMostRounds; ++round) {
    bool moved = false;
    for (int64_t i = 0; i < points.n; ++i) {
      int best = 0;
      double least = std::numeric_limits<double>::infinity();
      for (int c = 0; c < k; ++c) {
        const double at = SquaredDistance(points.Row(i), partition.centres.Row(c));
        if (at < least) {
          least = at;
          best = c;
        }
      }
      moved |= partition.assignment[i] != best;
      partition.assignment[i] = best;
      distance[i] = least;
    }
    partition.inertia = std::reduce(distance.begin(), distance.end());
    if (!moved) break;
    MoveCentres(points, partition.assignment, distance, partition.centres);
  }
  return partition;
}

Partition KMeans(const Cloud& points, int k, std::mt19937_64& random) {
  Partition best;
  for (int restart = 0; restart < kRestarts; ++restart) {
    Partition next = Settle(points, k, random);
    if (next.inertia < best.inertia) best = std::move(next);
  }
  return best;
}

// Each point's silhouette: (b − a) / max(a, b), a its mean distance to the others of its
// cluster, b to those of the nearest other cluster; 0 for one alone.  points: [n, dims].
std::vector<double> Silhouettes(const at::Tensor& points, const std::vector<int>& assignment, int k) {
  const int64_t n = points.size(0);
  const at::Tensor squares = points.square().sum(1, /*keepdim=*/true);
  at::Tensor distance = at::mm(points, points.t()).mul_(-2).add_(squares).add_(squares.t()).clamp_min_(0).sqrt_();
  distance.diagonal().zero_();
  const at::Tensor member = at::zeros({n, k}, at::kDouble);
  std::vector<double> sizes(k, 0);
  for (int64_t i = 0; i < n; ++i) {
    member.mutable_data_ptr<double>()[i * k + assignment[i]] = 1;
    ++sizes[assignment[i]];
  }
  const at::Tensor sums = at::mm(distance, member).contiguous();
  std::vector<double> silhouettes(n, 0);
  for (int64_t i = 0; i < n; ++i) {
    const double* sum = sums.const_data_ptr<double>() + i * k;
    const int own = assignment[i];
    if (sizes[own] < 2) continue;
    const double a = sum[own] / (sizes[own] - 1);
    double b = std::numeric_limits<double>::infinity();
    for (int c = 0; c < k; ++c) {
      if (c != own && sizes[c] > 0) b = std::min(b, sum[c] / sizes[c]);
    }
    if (std::isfinite(b) && std::max(a, b) > 0) silhouettes[i] = (b - a) / std::max(a, b);
  }
  return silhouettes;
}

// The patterns on their principal axes, [n, components] float64 on the CPU.
at::Tensor PatternScores(const at::Tensor& activations, double& variance) {
  at::Tensor patterns = activations.to(at::kDouble).cpu();
  patterns = patterns / at::linalg_vector_norm(patterns, 2, at::IntArrayRef{1}, /*keepdim=*/true).clamp_min(1e-30);
  patterns = patterns - patterns.mean(0);
  // As many axes as tokens at most: the products of tokens with tokens are the smaller matrix.
  const auto [values, vectors] = at::linalg_eigh(at::mm(patterns, patterns.t()));  // ascending
  const int64_t n = patterns.size(0), components = std::min(kPatternComponents, n - 1);
  const at::Tensor kept = values.narrow(0, n - components, components).flip(0).clamp_min(0);
  const double total = values.sum().item<double>();
  if (!(total > 1e-12 * static_cast<double>(n))) return at::zeros({n, components}, at::kDouble);  // all alike
  variance = kept.sum().item<double>() / total;
  return vectors.narrow(1, n - components, components).flip(1) * kept.sqrt();
}

// As many points of one normal distribution whose axes vary as those of `scores` do.
at::Tensor NormalCloud(const at::Tensor& scores, std::mt19937_64& random) {
  const at::Tensor cloud = at::zeros(scores.sizes(), at::kDouble);
  double* value = cloud.mutable_data_ptr<double>();
  for (int64_t i = 0; i < cloud.numel(); ++i) value[i] = Normal(random);
  return cloud * scores.square().mean(0).sqrt();
}

// Renames clusters so that the largest is 0.
void SortBySize(Partition& partition) {
  const auto k = static_cast<size_t>(partition.centres.n);
  std::vector<int64_t> sizes(k, 0);
  for (const int cluster : partition.assignment) ++sizes[cluster];
  std::vector<size_t> order(k);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int> name(k);
  Cloud centres{partition.centres.n, partition.centres.dims, {}};
  for (size_t i = 0; i < k; ++i) {
    name[order[i]] = static_cast<int>(i);
    const std::span<const double> centre = partition.centres.Row(static_cast<int64_t>(order[i]));
    centres.values.insert(centres.values.end(), centre.begin(), centre.end());
  }
  for (int& cluster : partition.assignment) cluster = name[cluster];
  partition.centres = std::move(centres);
}

}  // namespace

int64_t FewestToCluster(int clusters) { return std::max(50, 5 * clusters); }

TokenClusters ClusterPatterns(const at::Tensor& activations, int clusters, uint64_t seed) {
  TokenClusters result;
  const at::Tensor scores = PatternScores(activations, result.variance);
  const Cloud points = Cloud::Of(scores);
  std::mt19937_64 random(seed);
  Partition partition = KMeans(points, clusters, random);
  SortBySize(partition);
  const std::vector<double> silhouettes = Silhouettes(scores, partition.assignment, clusters);
  result.silhouette = Mean(silhouettes);
  const double total = scores.square().sum().item<double>();
  result.explained = total > 0 ? 1 - partition.inertia / total : 0;

  std::vector<std::vector<int64_t>> members(clusters);
  for (int64_t i = 0; i < points.n; ++i) members[partition.assignment[i]].push_back(i);
  for (int c = 0; c < clusters; ++c) {
    double sum = 0;
    for (const int64_t i : members[c]) sum += silhouettes[i];
    result.sizes.push_back(static_cast<int64_t>(members[c].size()));
    result.silhouettes.push_back(sum / std::max<double>(1, static_cast<double>(members[c].size())));
    const auto distance = [&](int64_t i) { return SquaredDistance(points.Row(i), partition.centres.Row(c)); };
    std::stable_sort(members[c].begin(), members[c].end(),
                     [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
    if (members[c].size() > kCentral) members[c].resize(kCentral);
    result.central.push_back(members[c]);
  }
  result.assignment = std::move(partition.assignment);

  result.null_highest = -1;
  for (int i = 0; i < kClusterNulls; ++i) {
    const at::Tensor cloud = NormalCloud(scores, random);
    const Partition none = KMeans(Cloud::Of(cloud), clusters, random);
    const double silhouette = Mean(Silhouettes(cloud, none.assignment, clusters));
    result.null_mean += silhouette / kClusterNulls;
    result.null_highest = std::max(result.null_highest, silhouette);
  }
  return result;
}

}  // namespace gatehouse
