#ifndef GATEHOUSE_SERVER_RPC_TRANSLATE_H_
#define GATEHOUSE_SERVER_RPC_TRANSLATE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gatehouse/v1/analysis.pb.h"
#include "gatehouse/v1/common.pb.h"
#include "gatehouse/v1/generation.pb.h"
#include "gatehouse/v1/interventions.pb.h"
#include "gatehouse/v1/models.pb.h"
#include "gatehouse/v1/operations.pb.h"
#include "gatehouse/v1/reports.pb.h"
#include "gatehouse/v1/scoring.pb.h"
#include "server/serving/calibration_store.h"
#include "server/serving/operations.h"
#include "server/serving/requests.h"

namespace gatehouse {

struct ServedModel;

// Between the wire and the server's own types.  Requests: InvalidArgument, naming the
// field, for what the server's types cannot express (an unknown enum value, a number too
// large) and for bounds of the wire (how many entries); the rest is checked where its
// meaning is known, in serving and the engine.

absl::StatusOr<GenerateRequest> FromProto(const v1::GenerateRequest& proto);
absl::StatusOr<ScoreRequest> FromProto(const v1::ScoreRequest& proto);
absl::StatusOr<AnalysisRequest> FromProto(const v1::ScoreNonlinearityRequest& proto);
absl::StatusOr<AnalysisRequest> FromProto(const v1::TraceConsensusRequest& proto);
absl::StatusOr<OperationSpec> FromProto(const v1::StartOperationRequest& proto);

absl::StatusOr<std::vector<Intervention>> FromProto(const google::protobuf::RepeatedPtrField<v1::Intervention>& protos);
absl::StatusOr<std::vector<ActivationCapture>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::ActivationCapture>& protos);
absl::StatusOr<MlpPath> PathFromProto(v1::MlpPath path, std::string_view field);

// For counts that mean "at least so many": more than an int holds is as good as the most.
int Clamped(uint32_t value);
// For counts with a bound of their own: InvalidArgument for more than an int holds.
absl::StatusOr<int> CountFromProto(uint32_t value, std::string_view field);
// LAYER_OUT_OF_RANGE for what no model has.
absl::StatusOr<int> LayerFromProto(uint32_t layer, std::string_view field);

// Replies.  `calibration` names the neurons of consensus records; it may be null where
// there are none.  Every string is made valid UTF-8.

v1::GenerationStart ToProto(const GenerationStart& start);
v1::GeneratedToken ToProto(const GeneratedToken& token, const CalibrationInfo* calibration);
v1::GenerationSummary ToProto(const GenerationSummary& summary);
v1::ScoredToken ToProto(const ScoredToken& token, const CalibrationInfo* calibration);
v1::ScoreSummary ToProto(const ScoreSummary& summary);
v1::TokenInsight ToProto(const TokenInsight& insight, const CalibrationInfo* calibration);
v1::AnalysisSummary ToProto(const AnalysisSummary& summary);
// Those of `count` positions from `begin` on.
v1::Activations ToProto(const Activations& activations, size_t begin, size_t count);
v1::NonlinearityStart NonlinearityStartOf(const CalibrationInfo& calibration);
v1::ConsensusStart ConsensusStartOf(const CalibrationInfo& calibration);

v1::Operation ToProto(const OperationStatus& status);

v1::Report ToProtoWithoutTables(const Report& report);
size_t RowCount(const ReportTable& table);
// Adds rows of the table from `begin` on, as many as a message has room for; returns where
// the next piece begins.
size_t AddRows(const ReportTable& table, size_t begin, v1::ReportTable& proto);

v1::ModelSummary SummaryOf(const ServedModel& model);
v1::DescribeModelResponse DescriptionOf(const ServedModel& model);
v1::CalibrationSummary SummaryOf(const CalibrationStore::Entry& calibration, bool active);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_TRANSLATE_H_
