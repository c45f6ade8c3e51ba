#ifndef GATEHOUSE_SERVER_ENGINE_ROUTING_H_
#define GATEHOUSE_SERVER_ENGINE_ROUTING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/model_info.h"

namespace gatehouse {

// What one token's MLP did in one layer.
enum class MlpPath : uint8_t { kFull = 0, kLinear = 1, kLadder = 2, kSkip = 3 };
inline constexpr int kMlpPaths = 4;

enum class GatingMode { kFull, kLinear, kGated };

// A gating policy as a caller states it.
struct GatingRequest {
  GatingMode mode = GatingMode::kFull;
  std::optional<float> threshold;         // in [0, 1]; 0.5 when absent
  std::map<int, float> layer_thresholds;  // of single layers, before `threshold`; kGated only
  // Empty: the mode's default.  kLinear: all.  kGated: those the calibration calls
  // gateable and those that have a threshold of their own.
  std::vector<int> layers;
};

// A gating policy resolved against a model and a calibration: what each layer does.
// An immutable value, shared freely.
//
// Polarity, everywhere: p = P(linear is fine); a token goes linear iff p > threshold.
class RoutingPolicy {
 public:
  enum class Rule : uint8_t { kFull, kLinear, kGated };

  // Every layer in full; needs no calibration.  A calibration may still be given: it
  // is what nonlinearity and consensus records are measured with.
  static RoutingPolicy Full(const ModelInfo& model, std::shared_ptr<const Calibration> calibration = nullptr);

  // InvalidArgument naming the field for a threshold outside [0, 1] (or NaN), a layer
  // out of range, given twice, or a layer threshold outside `layers`;
  // FailedPrecondition when the mode needs a calibration and there is none.
  static absl::StatusOr<RoutingPolicy> Create(const GatingRequest& request, const ModelInfo& model,
                                              std::shared_ptr<const Calibration> calibration);

  int layers() const { return static_cast<int>(rules_.size()); }
  Rule rule(int layer) const { return rules_[layer]; }
  float threshold(int layer) const { return thresholds_[layer]; }
  bool all_full() const { return all_full_; }
  // The first positions of a sequence always run in full.
  int sink_positions() const { return sink_positions_; }
  // Null where none was given.
  const std::shared_ptr<const Calibration>& calibration() const { return calibration_; }
  // What the caller should know, such as that no layer is gateable.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<Rule> rules_;
  std::vector<float> thresholds_;
  bool all_full_ = true;
  int sink_positions_ = 0;
  std::shared_ptr<const Calibration> calibration_;
  std::vector<std::string> notes_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ROUTING_H_
