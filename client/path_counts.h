#ifndef GATEHOUSE_CLIENT_PATH_COUNTS_H_
#define GATEHOUSE_CLIENT_PATH_COUNTS_H_

#include <vector>

namespace gatehouse::client {

// How many tokens took each path through a layer's MLP, or how many token × layer decisions
// went so: whole numbers, or what a metrics page says.
template <typename Count>
struct PathCounts {
  Count full = 0, linear = 0, ladder = 0, skip = 0;

  Count all() const { return full + linear + ladder + skip; }

  PathCounts& operator+=(const PathCounts& other) {
    full += other.full;
    linear += other.linear;
    ladder += other.ladder;
    skip += other.skip;
    return *this;
  }

  PathCounts& operator-=(const PathCounts& other) {
    full -= other.full;
    linear -= other.linear;
    ladder -= other.ladder;
    skip -= other.skip;
    return *this;
  }
};

template <typename Count>
PathCounts<Count> SumOf(const std::vector<PathCounts<Count>>& layers) {
  PathCounts<Count> sum;
  for (const PathCounts<Count>& layer : layers) sum += layer;
  return sum;
}

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_PATH_COUNTS_H_
