// Writes the planted model for tests that serve it, and prints its truth as JSON.
//
//   write_planted_model DIRECTORY [--random-weights]

#include <cstdio>
#include <cstring>

#include "server/base/strings.h"
#include "tests/support/planted_model.h"

namespace {

void PrintList(const char* key, const std::vector<int>& values) {
  std::printf("\"%s\": [", key);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%d", i == 0 ? "" : ", ", values[i]);
  std::printf("]");
}

}  // namespace

int main(int argc, char** argv) {
  gatehouse::testing::PlantedOptions options;
  options.random_weights = argc == 3 && std::strcmp(argv[2], "--random-weights") == 0;
  if (argc < 2 || argc > 3 || (argc == 3 && !options.random_weights)) {
    std::fprintf(stderr, "usage: write_planted_model DIRECTORY [--random-weights]\n");
    return 2;
  }
  const auto truth = gatehouse::testing::WritePlantedModel(argv[1], options);
  if (!truth.ok()) {
    std::fprintf(stderr, "%s\n", truth.status().ToString().c_str());
    return 1;
  }
  std::printf("{\"layer\": %d, ", truth->layer);
  PrintList("consensus", truth->consensus);
  std::printf(", ");
  PrintList("exception", truth->exception);
  std::printf("}\n");
  return 0;
}
