#ifndef GATEHOUSE_CLIENT_CLI_JSON_H_
#define GATEHOUSE_CLIENT_CLI_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "gatehouse/v1/analysis.pb.h"
#include "gatehouse/v1/generation.pb.h"
#include "gatehouse/v1/models.pb.h"
#include "gatehouse/v1/operations.pb.h"
#include "gatehouse/v1/reports.pb.h"
#include "gatehouse/v1/scoring.pb.h"

namespace gatehouse::cli {

// What `--json` prints; docs/client.md documents every field, and they are stable.
// Fields keep their order.  Numbers that JSON cannot write (NaN, infinities) are null.
// Strings are valid UTF-8: bytes that are not become U+FFFD, and the exact bytes stand
// in base64 under "raw" where `raw` is set.
using Json = nlohmann::ordered_json;

Json Number(float value);
Json Number(double value);
std::string Base64(std::string_view bytes);

Json ToJson(const v1::RoutingSummary& routing);
Json ToJson(const v1::TokenInsight& insight, bool raw);
Json ToJson(const v1::GeneratedToken& token, bool raw);
Json ToJson(const v1::ScoredToken& token, bool raw);
Json ToJson(const v1::NonlinearityPercentiles& layer);
Json ToJson(const v1::LayerNeurons& layer);
Json ToJson(const v1::LayerCalibration& layer);
Json ToJson(const v1::OperatingPoint& point);
Json ToJson(const v1::CalibrationSummary& calibration);
Json ToJson(const v1::DescribeModelResponse& model);
Json ToJson(const v1::Operation& operation);
Json ToJson(const v1::Report& report);

// {"error": {"code", "reason", "message"}}.
Json ErrorJson(const absl::Status& status);

// The words of enums, as JSON and tables show them.
std::string FinishReasonName(v1::FinishReason reason);
std::string OperationStateName(v1::OperationState state);
std::string PathName(v1::MlpPath path);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_JSON_H_
