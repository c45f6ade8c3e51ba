#ifndef GATEHOUSE_SERVER_SERVING_CALIBRATE_OPERATION_H_
#define GATEHOUSE_SERVER_SERVING_CALIBRATE_OPERATION_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/engine.h"
#include "server/serving/model_catalog.h"

namespace gatehouse {

// What a calibration has to be told, checked against the model.  InvalidArgument naming
// the field and its bound.
absl::Status CheckCalibrateOptions(const CalibrateOptions& options, const ModelInfo& model);

// Calibrates `model` on the text at `corpus_path`, and takes the result up in its
// calibration store, as the active one where asked.  Returns the size of its file.
// Blocks for long; Cancelled soon after `cancelled` is set, with nothing written.
absl::StatusOr<uint64_t> RunCalibration(const ServedModel& model, const std::string& corpus_path,
                                        const CalibrateOptions& options, bool activate, const ProgressFn& progress,
                                        const std::atomic<bool>& cancelled);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_CALIBRATE_OPERATION_H_
