#ifndef GATEHOUSE_SERVER_ENGINE_INTERVENTION_H_
#define GATEHOUSE_SERVER_ENGINE_INTERVENTION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/model_info.h"
#include "server/engine/routing.h"

namespace gatehouse {

// What a row may change while the model computes, and what it may take from it;
// proto/gatehouse/v1/interventions.proto documents every field and bound.

enum class ActivationSite : uint8_t { kResidualPre, kAttentionOut, kMlpIn, kNeurons, kMlpOut, kResidualPost };

// How many numbers a token has at a site.
int SiteWidth(ActivationSite site, const ModelInfo& model);

struct NeuronChange {
  enum class Kind : uint8_t { kScale, kMean, kSet };
  std::vector<int> neurons;
  Kind kind = Kind::kScale;
  float value = 0;  // the factor of kScale, the activation of kSet
};
struct ZeroMlp {};
struct ForcePath {
  MlpPath path = MlpPath::kFull;
};
struct Patch {
  ActivationSite site = ActivationSite::kResidualPre;
  std::vector<float> values;  // [width], or row-major [positions, width]
};

struct Intervention {
  std::vector<int> layers;
  std::vector<int> positions;  // in the sequence; none: all
  std::variant<NeuronChange, ZeroMlp, ForcePath, Patch> change;
};

// Interventions checked against a model and a calibration and sorted by layer.  An immutable
// value, shared freely.
class InterventionPlan {
 public:
  // InvalidArgument naming the field for anything out of its bounds; FailedPrecondition where
  // a change needs a calibration (its surrogate, ladder or mean activations) and there is none
  // or it lacks them.  A position that neurons are changed at cannot have a path other than
  // full; otherwise the last path that is given counts.
  static absl::StatusOr<std::shared_ptr<const InterventionPlan>> Create(std::vector<Intervention> interventions,
                                                                        const ModelInfo& model,
                                                                        std::shared_ptr<const Calibration> calibration);

  // Whether any of them needs a calibration.
  static bool NeedCalibration(std::span<const Intervention> interventions);

  int layers() const { return static_cast<int>(by_layer_.size()); }
  // Of one layer, in the order of the request; their positions ascending.
  std::span<const Intervention* const> at(int layer) const { return by_layer_[layer]; }
  const std::shared_ptr<const Calibration>& calibration() const { return calibration_; }
  // What the caller should know where the policy routes: which layers run in full for a change
  // of neurons.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<Intervention> interventions_;
  std::vector<std::vector<const Intervention*>> by_layer_;
  std::shared_ptr<const Calibration> calibration_;
  std::vector<std::string> notes_;
};

// One layer's activations that a row wants, of all its positions or some.
struct CaptureSite {
  int layer = 0;
  ActivationSite site = ActivationSite::kResidualPre;
  std::vector<int> positions;  // in the sequence, ascending; none: all
};

// What a step captured for one of them: positions of the step, and their activations.
struct CapturedSite {
  std::vector<int> positions;
  std::vector<float> values;  // row-major [positions, width]
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_INTERVENTION_H_
