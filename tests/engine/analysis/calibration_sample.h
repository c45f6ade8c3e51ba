#ifndef GATEHOUSE_TESTS_ENGINE_ANALYSIS_CALIBRATION_SAMPLE_H_
#define GATEHOUSE_TESTS_ENGINE_ANALYSIS_CALIBRATION_SAMPLE_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/weights.h"

namespace gatehouse::testing {

inline constexpr int kLayers = 3, kModel = 8, kMlp = 20;

// What calibrations are checked against: the shape of a model, without its weights.
ModelWeights SampleModel();

// A calibration of that model with random tensors and every field of its description set.
CalibrationData SampleCalibration();

// The same with a ladder in layers 0 and 2, and two operating points.
CalibrationData SampleWithLadders();

// A path for a file of the current test.
std::string SamplePath(const std::string& name);

// The calibration's tensors by their names in the file; without mean activations.
std::map<std::string, at::Tensor> TensorsOf(const CalibrationData& data);

// Writes a file as a researcher would, and reads it.
absl::StatusOr<CalibrationData> WriteAndRead(const std::map<std::string, at::Tensor>& tensors,
                                             const std::map<std::string, std::string>& metadata);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_ANALYSIS_CALIBRATION_SAMPLE_H_
