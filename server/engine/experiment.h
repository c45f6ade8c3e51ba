#ifndef GATEHOUSE_SERVER_ENGINE_EXPERIMENT_H_
#define GATEHOUSE_SERVER_ENGINE_EXPERIMENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "server/engine/report.h"

namespace gatehouse {

// A text that an experiment reads.
struct Corpus {
  std::string label;
  std::string sha256;
  std::vector<int32_t> tokens;
};

// What every experiment has to be told.  Zero counts mean the default, or less where
// the corpus is shorter (see CorpusSplits).
struct ExperimentOptions {
  std::vector<int> layers;    // empty: all
  int64_t fit_tokens = 0;     // 10,000: surrogates
  int64_t gate_tokens = 0;    // 25,000: gates
  int64_t select_tokens = 0;  // 5,000: choices
  int64_t report_tokens = 0;  // 5,000: the figures that are reported
  int window_tokens = 0;      // min(512, context)
  int sink_positions = 4;
  double ridge = 0.01;
  int bootstrap_resamples = 10'000;
  uint64_t seed = 0;
};

// A.2: the cost of every layer, with and without sinks, with intervals.
struct LinearizationCostMethod {};

// A.3: logistic and PCA-bottleneck gates over a sweep of thresholds.
struct GateSweepMethod {
  std::vector<double> thresholds = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};
  std::vector<int> bottlenecks = {1, 3, 6};  // b: PCA to 2b dimensions
};

// A.4: what of a token decides whether it may go linear.
struct RoutabilityMethod {};

// A.5: tokens that must not go linear, pairwise over two or more corpora.
struct NoFlyMethod {
  double least_mean = 0.05;     // nats
  int least_count = 10;         // on the corpus that lists
  double least_positive = 0.6;  // share of the token's δCE
  int least_count_other = 3;    // on the corpus that judges
};

// A.6, the three ways of training; the control with nothing replaced runs to the same step.
enum class TrainingSchedule {
  kProgressive,  // replace layers one after another, fine-tuning the rest after each
  kTwoPhase,     // linearize and fine-tune, then bring the MLPs back and train gates
  kRouting,      // fine-tune with gates on
};
struct TrainingMethod {
  TrainingSchedule schedule = TrainingSchedule::kProgressive;
  // The layers to replace, in order; empty: middle layers outwards, half of them.
  std::vector<int> order;
  int steps_per_layer = 50;
  int final_steps = 100;
  int batch_sequences = 4;
  double learning_rate = 0;  // 0: the paper's, 5e-6 (progressive) or 2e-5 (two-phase, routing)
  double weight_decay = 0.01;
  double gradient_clip = 1;
  double gate_learning_rate = 1e-3;
  double gate_pressure = 0.05;  // weight of the L1 pressure toward linear
  int evaluate_every = 25;      // steps
  bool save_model = false;      // writes the weights as a model directory
};

// B.1 and B.3: nonlinearity scores, regimes, and clusters of the most nonlinear tokens.
struct NonlinearityMethod {
  int clusters = 8;
};

// B.2: how much of the residual δ a polynomial explains.
struct PolynomialProbeMethod {
  std::vector<int> degrees = {2, 3, 4, 5, 6, 7};
  int components = 50;      // of the PCA of x
  double ridge = 1;         // α
  double high_share = 0.1;  // of the tokens, those of largest ‖δ‖
};

// B.4-B.6, B.8 and B.10: consensus architecture of every layer, with its nulls.
struct ConsensusMethod {
  int max_consensus = 7;
};

// B.7: the damage of zeroing a layer's MLP, by level of consensus.
struct AblationMethod {
  int max_consensus = 7;
};

// B.9: quorum gates beside logistic gates at equal work.
struct QuorumMethod {
  int max_consensus = 7;
};

using ExperimentMethod =
    std::variant<LinearizationCostMethod, GateSweepMethod, RoutabilityMethod, NoFlyMethod, TrainingMethod,
                 NonlinearityMethod, PolynomialProbeMethod, ConsensusMethod, AblationMethod, QuorumMethod>;

// The text of a token.
using TokenTextFn = std::function<std::string(int32_t token)>;

struct ExperimentSpec {
  ExperimentOptions options;
  ExperimentMethod method;
  TokenTextFn token_text = nullptr;  // where there is none, reports show ids alone
};

// The method's name, which is its operation's kind: "linearization_cost", "gate_sweep",
// "routability", "no_fly", "progressive", "two_phase", "routing_training", "nonlinearity",
// "polynomial_probe", "consensus", "ablation", "quorum".
std::string ExperimentKind(const ExperimentMethod& method);

struct ExperimentResult {
  Report report;
  std::vector<ReportArray> arrays;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_EXPERIMENT_H_
