#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_SHUFFLE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_SHUFFLE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace gatehouse {

// Fisher-Yates with the same result from the same generator on every platform, which
// std::shuffle does not promise.
template <typename T>
void Shuffle(std::vector<T>& values, std::mt19937_64& random) {
  for (size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random() % i]);
  }
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_SHUFFLE_H_
