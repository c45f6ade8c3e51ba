#ifndef GATEHOUSE_SERVER_ENGINE_GATING_CALIBRATION_DESCRIPTION_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_CALIBRATION_DESCRIPTION_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/calibration.h"

namespace gatehouse {

// The metadata of a calibration file: string pairs in the safetensors header, one of them
// JSON.  docs/calibration-file.md defines them.

// `info` without its fingerprint, which is the file's.
std::map<std::string, std::string> CalibrationMetadata(const CalibrationInfo& info);

// What `metadata` describes, of a file whose tensors are for `layers` layers; defaults for
// all it leaves out.  InvalidArgument, naming the key, for anything missing, of the wrong
// type, out of range, or unknown.
absl::StatusOr<CalibrationInfo> ParseCalibrationMetadata(const std::map<std::string, std::string>& metadata,
                                                         int layers);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_CALIBRATION_DESCRIPTION_H_
