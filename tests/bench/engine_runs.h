#ifndef GATEHOUSE_TESTS_BENCH_ENGINE_RUNS_H_
#define GATEHOUSE_TESTS_BENCH_ENGINE_RUNS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/engine/mlp_work.h"

namespace gatehouse {

// Random surrogates, gates and ladders for the engine's model.
absl::StatusOr<std::shared_ptr<const Calibration>> RandomCalibration(Engine& engine, double ladder_share);

// Runs sequences through an engine and times them.  Ends the program where a step fails.
class EngineRuns {
 public:
  struct Options {
    int new_tokens = 64;  // decoded by each row
    int prompt = 32;      // tokens before them, not timed
    int tokens = 512;     // of a text that is prefilled or scored
    int rounds = 3;       // the best one counts, after one to warm up
    // Rows read it from places of their own; empty: pseudo-random tokens.
    std::vector<int32_t> text;
  };

  EngineRuns(Engine& engine, Options options);

  // How many rows of one step took (full, linear, ladder) in one layer → how often.
  using Partitions = std::map<std::array<int, 3>, int64_t>;
  struct Figure {
    double tokens_per_second = 0;
    double linear_fraction = 0, ladder_fraction = 0;
    double mlp_work_saved = 0;
    Partitions partitions;  // of one round
  };

  Figure Decode(int batch, const RoutingPolicy& policy);

  // Decodes under `base` and `policy` by turns, so that what else the machine does meets both.
  // The medians of the rounds; `speedup` is that of the rounds' own ratios.
  struct Comparison {
    Figure base, policy;
    double speedup = 0;
  };
  Comparison CompareDecode(int batch, const RoutingPolicy& base, const RoutingPolicy& policy);

  Figure Text(const RoutingPolicy& policy, bool score);

  // Thresholds of every layer that send `fraction` of the tokens linear.  Layer after
  // layer, since each sees what the ones before it made of the text.
  std::map<int, float> ThresholdsFor(double fraction, const std::shared_ptr<const Calibration>& calibration);

 private:
  // Tokens [first, first + count) of a row.
  std::vector<int32_t> Tokens(int row, int first, int count) const;
  void Feed(SequenceId sequence, const std::vector<int32_t>& ids, const RoutingPolicy& policy, bool score);
  void Step(std::span<const Row> rows);
  void Count(std::span<const Row> rows, std::span<const RowResult> results);
  void StartCounting();
  // Tokens per second of one round.
  double DecodeOnce(int batch, const RoutingPolicy& policy);
  Figure Best(const std::function<double()>& run);
  // What the last round did, at that speed.
  Figure Counted(double tokens_per_second) const;

  Engine& engine_;
  const Options options_;
  SamplingState sampling_;
  std::vector<LayerTraffic> traffic_;  // [layers], of the current round
  Partitions partitions_;              // of the current round
};

}  // namespace gatehouse

#endif  // GATEHOUSE_TESTS_BENCH_ENGINE_RUNS_H_
