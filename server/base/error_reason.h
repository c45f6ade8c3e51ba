#ifndef GATEHOUSE_SERVER_BASE_ERROR_REASON_H_
#define GATEHOUSE_SERVER_BASE_ERROR_REASON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gatehouse {

// Reasons a program can act on, sent as the ErrorInfo of a failed call.  They are API:
// docs/api.md says what each means.
namespace reason {
inline constexpr std::string_view kInvalidField = "INVALID_FIELD";
inline constexpr std::string_view kInvalidUtf8 = "INVALID_UTF8";
inline constexpr std::string_view kMalformedMessage = "MALFORMED_MESSAGE";
inline constexpr std::string_view kEmptyInput = "EMPTY_INPUT";
inline constexpr std::string_view kPromptTooLong = "PROMPT_TOO_LONG";
inline constexpr std::string_view kTokenOutOfRange = "TOKEN_OUT_OF_RANGE";
inline constexpr std::string_view kLayerOutOfRange = "LAYER_OUT_OF_RANGE";
inline constexpr std::string_view kModelNotFound = "MODEL_NOT_FOUND";
inline constexpr std::string_view kCalibrationNotFound = "CALIBRATION_NOT_FOUND";
inline constexpr std::string_view kOperatingPointNotFound = "OPERATING_POINT_NOT_FOUND";
inline constexpr std::string_view kOperationNotFound = "OPERATION_NOT_FOUND";
inline constexpr std::string_view kCorpusNotFound = "CORPUS_NOT_FOUND";
inline constexpr std::string_view kNotCalibrated = "NOT_CALIBRATED";
inline constexpr std::string_view kOtherModelsCalibration = "OTHER_MODELS_CALIBRATION";
inline constexpr std::string_view kOtherReplica = "OTHER_REPLICA";
inline constexpr std::string_view kNoResult = "NO_RESULT";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kTooManyCalls = "TOO_MANY_CALLS";
inline constexpr std::string_view kKvMemoryFull = "KV_MEMORY_FULL";
inline constexpr std::string_view kOutOfMemory = "OUT_OF_MEMORY";
inline constexpr std::string_view kReaderTooSlow = "READER_TOO_SLOW";
inline constexpr std::string_view kUploadTooLarge = "UPLOAD_TOO_LARGE";
inline constexpr std::string_view kDiskFull = "DISK_FULL";
inline constexpr std::string_view kTooManyOperations = "TOO_MANY_OPERATIONS";
inline constexpr std::string_view kDraining = "DRAINING";
inline constexpr std::string_view kModelProducedNan = "MODEL_PRODUCED_NAN";
}  // namespace reason

// The same status, carrying `reason` as a payload.  OK stays OK.
absl::Status WithReason(absl::Status status, std::string_view reason);

// The reason a status carries; else the default of its code, which is INVALID_FIELD for
// InvalidArgument and the code's own name ("NOT_FOUND") otherwise.  Empty for OK.
std::string ReasonOf(const absl::Status& status);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_ERROR_REASON_H_
