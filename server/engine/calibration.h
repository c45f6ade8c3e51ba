#ifndef GATEHOUSE_SERVER_ENGINE_CALIBRATION_H_
#define GATEHOUSE_SERVER_ENGINE_CALIBRATION_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gatehouse {

struct NeuronFinding {
  int neuron = 0;
  double base_rate = 0;        // firing rate over all tokens but sinks
  double rate_difference = 0;  // firing rate among high less among linear tokens
};

// What a calibration knows of one layer.
struct LayerCalibration {
  // Relative change of perplexity with this layer's MLP replaced by its surrogate
  // (paper A, linearization cost; methods A.2); 0.01 is one percent.
  double linear_cost = 0;
  double linear_cost_with_sinks = 0;
  double surrogate_r2 = 0;  // held out, pooled over dimensions (A.1)
  double surrogate_r2_with_sinks = 0;
  bool gateable = false;
  double gate_linear_fraction = 0;  // at threshold 0.5 on held-out tokens (A.3)
  double gate_cost = 0;
  // Percentiles of the nonlinearity score ‖y − ŷ‖ (paper B; B.1).
  double p25 = 0, p50 = 0, p70 = 0, p95 = 0;
  // Most extreme first (B.4).  At most 64 each.
  std::vector<NeuronFinding> consensus, exception, gateway;
  // What the same rules name under shuffled labels (mean count), and with
  // re-initialised weights.
  double consensus_null = 0, exception_null = 0, gateway_null = 0;
  double consensus_random = 0, exception_random = 0, gateway_random = 0;
  // How many neurons the layer's ladder keeps exact beside its own surrogate (A.7); 0: the
  // layer has no ladder.
  int ladder_neurons = 0;
  // Whether the mean activations of the layer's neurons are known (mean ablation).
  bool neuron_means = false;
};

// What an operating point does in one layer.  A token that is no sink goes linear where
// p > linear_threshold, else to the ladder where p > ladder_threshold, else to the full MLP.
// A threshold of 1 is never exceeded; one below 0 always is, and the gate is not asked.
struct OperatingLayer {
  float linear_threshold = 1;
  float ladder_threshold = 1;

  friend bool operator==(const OperatingLayer&, const OperatingLayer&) = default;
};

// Thresholds of all layers chosen together for a whole-model budget (A.7), and what they
// cost and save on the report split.
struct OperatingPoint {
  std::string name;   // "1%"
  double budget = 0;  // at most this relative change of perplexity: 0.01
  std::vector<OperatingLayer> layers;
  // Relative change of whole-model perplexity, with its 95 % interval (paired block
  // bootstrap).
  double cost = 0, cost_low = 0, cost_high = 0;
  // Share of the MLPs' multiplications that were not done, over all layers and tokens.
  double work_saved = 0;
  double linear_fraction = 0, ladder_fraction = 0;
};

// The description that a calibration file carries beside its tensors.
struct CalibrationInfo {
  std::string name;
  std::string fingerprint;        // "sha256:…" of the file
  std::string model_fingerprint;  // ModelInfo::fingerprint of the model it is for
  std::string created;            // RFC 3339
  std::string corpus;             // its label
  std::string corpus_sha256;
  int64_t fit_tokens = 0, gate_tokens = 0, select_tokens = 0, report_tokens = 0;
  int window_tokens = 0;
  int sink_positions = 4;
  double gateable_cost_limit = 0.05;
  double ridge = 0.01;
  uint64_t seed = 0;
  std::string dtype;
  std::vector<LayerCalibration> layers;
  // How the surrogates and gates came about beyond A.1 and A.3: "sequential", "ladders",
  // "tuned" (A.7).
  std::vector<std::string> ingredients;
  std::vector<OperatingPoint> operating_points;  // cheapest budget first
};

// Surrogates, gates and neuron lists of one model, ready for its device.
// Immutable; shared by the requests that use it and read from any thread.  The
// tensors are seen by the engine only.
class Calibration {
 public:
  virtual ~Calibration() = default;
  const CalibrationInfo& info() const { return info_; }

 protected:
  explicit Calibration(CalibrationInfo info) : info_(std::move(info)) {}

 private:
  CalibrationInfo info_;
};

// Whole-model gating to budgets (methods A.7): which operating points to make, and by what
// means.
struct BudgetOptions {
  std::vector<double> budgets;   // relative changes of perplexity, each in (0, 10]
  bool sequential = true;        // fit each surrogate on the stream that the ones before it made
  bool ladders = true;           // let layers have a ladder
  double ladder_share = 0.25;    // of a layer's neurons, kept exact
  bool tune = true;              // tune surrogates and gates together against the full model's logits
  int tune_steps = 0;            // 0: 200
  int tune_sequences = 4;        // sequences of window_tokens a step
  double tune_work_saved = 0.3;  // the share of MLP work that tuning aims to save
};

// How to calibrate (methods A.1-A.3, B.1, B.4).  Zero token counts mean the default,
// or less where the corpus is shorter.
struct CalibrateOptions {
  std::string name;
  std::string corpus;  // label
  std::string corpus_sha256;
  int64_t fit_tokens = 0;     // 10,000
  int64_t gate_tokens = 0;    // 25,000
  int64_t select_tokens = 0;  // 5,000; 20,000 with budgets
  int64_t report_tokens = 0;  // 5,000; 20,000 with budgets
  int window_tokens = 0;      // min(512, context)
  int sink_positions = 4;
  double ridge = 0.01;
  double gateable_cost_limit = 0.05;
  int max_consensus = 7;  // in [1, 64]
  uint64_t seed = 0;
  // Whole-model gating to budgets (A.7); no budget: none of it.
  BudgetOptions budget;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_CALIBRATION_H_
