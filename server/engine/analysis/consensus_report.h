#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_REPORT_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/engine/analysis/consensus_levels.h"
#include "server/engine/analysis/consensus_prediction.h"
#include "server/engine/analysis/neuron_discovery.h"
#include "server/engine/report.h"

namespace gatehouse {

// What a study of the consensus architecture (methods B.4-B.6, B.8 and B.10) found, as tables.

inline constexpr const char* kTrained = "trained";
inline constexpr const char* kRandomWeights = "random weights";

// What the counts of a layer's neurons make of it (B.6): "scaffold", "diffuse", "decision", or
// "consensus only", which the paper has no name for.
std::string PhaseOf(const FindingCounts& counts);

// One layer of one corpus, with its controls.
struct ConsensusLayerRow {
  std::string corpus;
  int layer = 0;
  FindingCounts found, shuffled, random;  // of the layer, shuffled regimes, an MLP drawn anew
  Interval gradient, random_gradient;     // r of level and ‖δ‖
};

struct NeuronRow {
  std::string corpus, kind;
  int layer = 0;
  NeuronFinding found, held_out;  // on the tokens it was found on, and on others
};

struct LevelRow {
  std::string corpus, weights;  // kTrained or kRandomWeights
  int layer = 0;
  int64_t level = 0, most = 0;
  LevelStatistics statistics;
};

struct ExclusivityRow {
  std::string corpus;
  int layer = 0, exception = 0, consensus = 0;
  Exclusivity exclusivity;
};

struct PredictionRow {
  std::string corpus, reading;  // "binary" or "continuous"
  int layer = 0;
  double base_rate = 0;
  ConsensusReading figures;
};

struct ReadingDifferenceRow {
  std::string corpus;
  int layer = 0;
  Interval accuracy, auc, r2;
};

struct ConsensusFigures {
  std::vector<ConsensusLayerRow> layers;
  std::vector<NeuronRow> neurons;
  std::vector<LevelRow> levels;
  std::vector<ExclusivityRow> exclusivity;
  std::vector<PredictionRow> predictions;
  std::vector<ReadingDifferenceRow> differences;
};

// Fills in title, summary, notes, tables and plots.
void DescribeConsensus(const ConsensusFigures& figures, bool gated_mlp, Report& report);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_CONSENSUS_REPORT_H_
