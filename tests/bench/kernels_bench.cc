// Speed of the CPU kernels' products at the shapes of GPT-2 Medium, one JSON object a
// line.
//
//   gatehouse-kernels-bench [--kernels NAME] [--dtype float32|bfloat16] [--rows 1,2,4,8] [--wide 64,512] [--seconds S]
//
// "skinny" lines time all products of one decode step (24 layers and the output
// projection, each weight read once, so that none stays in a cache); "wide" lines one
// product of a chunk.  Medians.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "server/base/huge_pages.h"
#include "server/engine/kernels/kernels.h"

namespace gatehouse {
namespace {

constexpr int kLayers = 24;
constexpr int64_t kModel = 1024;
constexpr int64_t kVocab = 50257;

struct Options {
  std::string kernels = "auto";
  std::string dtype = "bfloat16";
  std::vector<int> rows = {1, 2, 4, 8};
  std::vector<int> wide = {64, 512};
  double seconds = 2;
};

std::vector<int> ParseList(const char* text) {
  std::vector<int> values;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(std::atoi(item.c_str()));
  return values;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--kernels") options.kernels = value;
    if (name == "--dtype") options.dtype = value;
    if (name == "--rows") options.rows = ParseList(value);
    if (name == "--wide") options.wide = ParseList(value);
    if (name == "--seconds") options.seconds = std::atof(value);
  }
  return options;
}

// The median time of `body`, run for about `seconds`.
template <typename Body>
double MedianSeconds(double seconds, Body body) {
  using Clock = std::chrono::steady_clock;
  body();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 5 || std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const auto before = Clock::now();
    body();
    times.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

LinearWeights MakeWeights(int64_t out, int64_t in, at::ScalarType dtype) {
  at::Tensor weight = at::empty({out, in}, dtype);
  PreferHugePages(weight.mutable_data_ptr(), weight.nbytes());
  weight.copy_(at::randn({out, in}).mul_(0.02));
  return {weight, at::randn({out})};
}

void Run(const Options& options) {
  const at::ScalarType dtype = options.dtype == "float32" ? at::kFloat : at::kBFloat16;
  auto kernels = MakeKernels(options.kernels, at::kCPU, dtype);
  if (!kernels.ok()) {
    std::fprintf(stderr, "%s\n", kernels.status().ToString().c_str());
    std::exit(1);
  }
  const std::string name((*kernels)->name());
  std::vector<LinearWeights> weights;
  for (int layer = 0; layer < kLayers; ++layer) {
    weights.push_back(MakeWeights(3 * kModel, kModel, dtype));
    weights.push_back(MakeWeights(kModel, kModel, dtype));
    weights.push_back(MakeWeights(4 * kModel, kModel, dtype));
    weights.push_back(MakeWeights(kModel, 4 * kModel, dtype));
  }
  weights.push_back(MakeWeights(kVocab, kModel, dtype));
  double parameters = 0;
  for (const LinearWeights& each : weights) parameters += static_cast<double>(each.weight.numel());
  const double bytes = parameters * (dtype == at::kFloat ? 4 : 2);

  for (const int rows : options.rows) {
    const at::Tensor narrow = at::randn({rows, kModel});
    const at::Tensor broad = at::randn({rows, 4 * kModel});
    const double seconds = MedianSeconds(options.seconds, [&] {
      for (const LinearWeights& each : weights) {
        (*kernels)->Linear(each.weight.size(1) == kModel ? narrow : broad, each, RowGroup::kSkinny);
      }
    });
    std::printf(
        "{\"product\":\"skinny\",\"kernels\":\"%s\",\"dtype\":\"%s\",\"threads\":%d,\"rows\":%d,\"ms\":%.3f,"
        "\"gb_per_s\":%.1f,\"gflops\":%.1f}\n",
        name.c_str(), options.dtype.c_str(), at::get_num_threads(), rows, seconds * 1e3, bytes / seconds / 1e9,
        2 * parameters * rows / seconds / 1e9);
    std::fflush(stdout);
  }
  for (const int rows : options.wide) {
    for (int which = 0; which < 4; ++which) {
      const LinearWeights& each = weights[which];
      const int64_t in = each.weight.size(1);
      const int64_t out = each.weight.size(0);
      const at::Tensor x = at::randn({rows, in});
      const double seconds = MedianSeconds(options.seconds / 4, [&] { (*kernels)->Linear(x, each, RowGroup::kWide); });
      std::printf(
          "{\"product\":\"wide\",\"kernels\":\"%s\",\"dtype\":\"%s\",\"threads\":%d,\"rows\":%d,\"in\":%ld,"
          "\"out\":%ld,\"ms\":%.3f,\"gflops\":%.1f}\n",
          name.c_str(), options.dtype.c_str(), at::get_num_threads(), rows, in, out, seconds * 1e3,
          2.0 * rows * static_cast<double>(in * out) / seconds / 1e9);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const c10::InferenceMode guard;
  gatehouse::Run(gatehouse::ParseOptions(argc, argv));
  return 0;
}
