#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_CALIBRATE_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_CALIBRATE_H_

#include <atomic>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/engine.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// Calibrates every layer of a model on a corpus (methods A.1, A.2, A.3, B.1, B.4): see
// Engine::Calibrate for errors.  Runs on the plain path; memory is bounded whatever the
// corpus's length.
absl::StatusOr<CalibrationData> Calibrate(const ModelWeights& model, const CalibrateOptions& options,
                                          std::span<const int32_t> tokens, const ProgressFn& progress,
                                          const std::atomic<bool>& cancelled);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_CALIBRATE_H_
