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

// How to calibrate (methods A.1-A.3, B.1, B.4).  Zero token counts mean the default,
// or less where the corpus is shorter.
struct CalibrateOptions {
  std::string name;
  std::string corpus;  // label
  std::string corpus_sha256;
  int64_t fit_tokens = 0;     // 10,000
  int64_t gate_tokens = 0;    // 25,000
  int64_t select_tokens = 0;  // 5,000
  int64_t report_tokens = 0;  // 5,000
  int window_tokens = 0;      // min(512, context)
  int sink_positions = 4;
  double ridge = 0.01;
  double gateable_cost_limit = 0.05;
  int max_consensus = 7;  // in [1, 64]
  uint64_t seed = 0;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_CALIBRATION_H_
