#ifndef GATEHOUSE_SERVER_ENGINE_ROUTING_H_
#define GATEHOUSE_SERVER_ENGINE_ROUTING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/model_info.h"

namespace gatehouse {

// What one token's MLP did in one layer.
enum class MlpPath : uint8_t { kFull = 0, kLinear = 1, kLadder = 2, kSkip = 3 };
inline constexpr int kMlpPaths = 4;

enum class GatingMode { kFull, kLinear, kGated, kLadder, kQuorum };

// A gating policy as a caller states it.
struct GatingRequest {
  GatingMode mode = GatingMode::kFull;
  std::optional<float> threshold;         // in [0, 1]; 0.5 when absent
  std::map<int, float> layer_thresholds;  // of single layers, before `threshold`; kGated only
  // In [0, 1]; kGated only.  Of the tokens that do not go linear, those with p above it take
  // the ladder, in layers that have one.  1 when absent: no ladder.
  std::optional<float> ladder_threshold;
  // Empty: the mode's default.  kLinear: all.  kLadder: those that have a ladder.  kGated:
  // those the calibration calls gateable and those that have a threshold of their own.
  std::vector<int> layers;
  // Name of an operating point of the calibration, in the place of all thresholds and
  // layers; kGated only.
  std::string operating_point;
  // How many of a layer's consensus neurons must fire for a token to leave the full MLP, in
  // [1, 64], and what it takes then: kLinear or kSkip; kQuorum only.
  int quorum = 0;
  MlpPath quorum_path = MlpPath::kLinear;
};

// A gating policy resolved against a model and a calibration: what each layer does.
// An immutable value, shared freely.
//
// Polarity, everywhere: p = P(linear is fine).  A token that is no sink goes linear iff
// p > the layer's linear threshold, else takes the ladder iff p > its ladder threshold, else
// the full MLP.
class RoutingPolicy {
 public:
  // kGated asks the gate, kQuorum the consensus neurons; the others need not.
  enum class Rule : uint8_t { kFull, kLinear, kLadder, kGated, kQuorum };

  // Every layer in full; needs no calibration.  A calibration may still be given: it
  // is what nonlinearity and consensus records are measured with.
  static RoutingPolicy Full(const ModelInfo& model, std::shared_ptr<const Calibration> calibration = nullptr);

  // InvalidArgument naming the field for a threshold outside [0, 1] (or NaN), a layer
  // out of range, given twice, (kLadder) without a ladder or (kQuorum) with too few consensus
  // neurons, a layer threshold outside `layers`, or fields that exclude each other; NotFound for an operating point
  // that the calibration does not have; FailedPrecondition when the mode needs a calibration and there is none.
  static absl::StatusOr<RoutingPolicy> Create(const GatingRequest& request, const ModelInfo& model,
                                              std::shared_ptr<const Calibration> calibration);

  int layers() const { return static_cast<int>(rules_.size()); }
  Rule rule(int layer) const { return rules_[layer]; }
  // What a gate's p is compared with, where rule(layer) is kGated.
  const OperatingLayer& thresholds(int layer) const { return thresholds_[layer]; }
  // Where rule(layer) is kQuorum: with at least so many consensus neurons firing, a token takes
  // quorum_path, else the full MLP.
  int quorum() const { return quorum_; }
  MlpPath quorum_path() const { return quorum_path_; }
  bool all_full() const { return all_full_; }
  // The first positions of a sequence always run in full.
  int sink_positions() const { return sink_positions_; }
  // Null where none was given.
  const std::shared_ptr<const Calibration>& calibration() const { return calibration_; }
  // What the caller should know, such as that no layer is gateable.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  // The next two set the rules and notes of a policy that so far runs in full.
  absl::Status Choose(const GatingRequest& request, const std::vector<bool>& named);
  absl::Status TakeOperatingPoint(const std::string& name);
  void SetLayer(int layer, const OperatingLayer& thresholds);

  std::vector<Rule> rules_;
  std::vector<OperatingLayer> thresholds_;
  int quorum_ = 0;
  MlpPath quorum_path_ = MlpPath::kLinear;
  bool all_full_ = true;
  int sink_positions_ = 0;
  std::shared_ptr<const Calibration> calibration_;
  std::vector<std::string> notes_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ROUTING_H_
