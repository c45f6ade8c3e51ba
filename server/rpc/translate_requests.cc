#include <algorithm>
#include <limits>

#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/translate.h"

namespace gatehouse {
namespace {

constexpr int kMaxLogitBiases = 1024;
constexpr int kMaxInputs = 256;

InputText Input(const v1::TextInput& proto) {
  InputText input;
  if (proto.has_text()) input.text = proto.text();
  input.token_ids.assign(proto.token_ids().ids().begin(), proto.token_ids().ids().end());
  input.plain_text = proto.plain_text();
  return input;
}

absl::StatusOr<GatingMode> Mode(v1::GatingPolicy::Mode mode) {
  switch (mode) {
    case v1::GatingPolicy::MODE_UNSPECIFIED:
    case v1::GatingPolicy::MODE_FULL:
      return GatingMode::kFull;
    case v1::GatingPolicy::MODE_LINEAR:
      return GatingMode::kLinear;
    case v1::GatingPolicy::MODE_GATED:
      return GatingMode::kGated;
    case v1::GatingPolicy::MODE_LADDER:
      return GatingMode::kLadder;
    case v1::GatingPolicy::MODE_QUORUM:
      return GatingMode::kQuorum;
    default:
      return absl::InvalidArgumentError(StrCat("gating.mode has the unknown value ", static_cast<int>(mode)));
  }
}

absl::StatusOr<GatingChoice> Gating(const v1::GatingPolicy& proto) {
  GatingChoice gating;
  GH_ASSIGN_OR_RETURN(gating.request.mode, Mode(proto.mode()));
  if (proto.mode() == v1::GatingPolicy::MODE_UNSPECIFIED && proto.has_threshold()) {
    return absl::InvalidArgumentError("threshold is only for gated mode, and no mode is given");
  }
  if (proto.has_threshold()) gating.request.threshold = proto.threshold();
  if (proto.has_ladder_threshold()) gating.request.ladder_threshold = proto.ladder_threshold();
  for (const auto& [layer, threshold] : proto.layer_thresholds()) {
    GH_ASSIGN_OR_RETURN(const int checked, LayerFromProto(layer, "gating.layer_thresholds"));
    gating.request.layer_thresholds[checked] = threshold;
  }
  for (const uint32_t layer : proto.layers()) {
    GH_ASSIGN_OR_RETURN(const int checked, LayerFromProto(layer, "gating.layers"));
    gating.request.layers.push_back(checked);
  }
  gating.request.operating_point = proto.operating_point();
  GH_ASSIGN_OR_RETURN(gating.request.quorum, CountFromProto(proto.quorum(), "gating.quorum"));
  if (proto.quorum_path() != v1::MLP_PATH_UNSPECIFIED) {
    GH_ASSIGN_OR_RETURN(gating.request.quorum_path, PathFromProto(proto.quorum_path(), "gating.quorum_path"));
  }
  gating.calibration = proto.calibration();
  return gating;
}

RecordRequest Records(const v1::TokenRecords& proto) {
  RecordRequest records;
  records.routing = proto.routing();
  records.nonlinearity = proto.nonlinearity();
  records.consensus = proto.consensus();
  records.gate = proto.gate();
  return records;
}

absl::StatusOr<SamplingParams> Sampling(const v1::SamplingParameters& proto) {
  if (proto.logit_bias_size() > kMaxLogitBiases) {
    return absl::InvalidArgumentError(StrCat("sampling.logit_bias has ", proto.logit_bias_size(), " entries, at most ",
                                             kMaxLogitBiases, " are allowed"));
  }
  SamplingParams sampling;
  if (proto.has_temperature()) sampling.temperature = proto.temperature();
  sampling.top_k = Clamped(proto.top_k());
  if (proto.has_top_p()) sampling.top_p = proto.top_p();
  sampling.min_p = proto.min_p();
  if (proto.has_repetition_penalty()) sampling.repetition_penalty = proto.repetition_penalty();
  sampling.logit_bias.insert(proto.logit_bias().begin(), proto.logit_bias().end());
  sampling.seed = proto.seed();
  return sampling;
}

template <typename Request>
absl::StatusOr<AnalysisRequest> Analysis(const Request& proto) {
  if (!(proto.inputs_size() >= 1 && proto.inputs_size() <= kMaxInputs)) {
    return absl::InvalidArgumentError(
        StrCat("inputs has ", proto.inputs_size(), " entries, must have 1 to ", kMaxInputs));
  }
  AnalysisRequest request;
  request.model = proto.model();
  for (const v1::TextInput& input : proto.inputs()) request.inputs.push_back(Input(input));
  GH_ASSIGN_OR_RETURN(request.gating, Gating(proto.gating()));
  request.records.routing = true;
  return request;
}

}  // namespace

int Clamped(uint32_t value) { return static_cast<int>(std::min<uint32_t>(value, std::numeric_limits<int>::max())); }

absl::StatusOr<int> CountFromProto(uint32_t value, std::string_view field) {
  if (value > static_cast<uint32_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        StrCat(field, " is ", value, ", must be at most ", std::numeric_limits<int>::max()));
  }
  return static_cast<int>(value);
}

absl::StatusOr<int> LayerFromProto(uint32_t layer, std::string_view field) {
  if (layer > static_cast<uint32_t>(std::numeric_limits<int>::max())) {
    return WithReason(absl::InvalidArgumentError(StrCat(field, " names layer ", layer, ", which no model has")),
                      reason::kLayerOutOfRange);
  }
  return static_cast<int>(layer);
}

absl::StatusOr<GenerateRequest> FromProto(const v1::GenerateRequest& proto) {
  GenerateRequest request;
  request.model = proto.model();
  request.prompt = Input(proto.prompt());
  if (proto.has_max_tokens()) request.max_tokens = proto.max_tokens();
  GH_ASSIGN_OR_RETURN(request.sampling, Sampling(proto.sampling()));
  request.has_seed = proto.sampling().has_seed();
  request.stop.strings.assign(proto.stop().strings().begin(), proto.stop().strings().end());
  request.stop.token_ids.assign(proto.stop().token_ids().begin(), proto.stop().token_ids().end());
  request.stop.ignore_eos = proto.stop().ignore_eos();
  GH_ASSIGN_OR_RETURN(request.gating, Gating(proto.gating()));
  GH_ASSIGN_OR_RETURN(request.interventions, FromProto(proto.interventions()));
  GH_ASSIGN_OR_RETURN(request.captures, FromProto(proto.captures()));
  request.records = Records(proto.records());
  request.record_prompt = proto.record_prompt();
  GH_ASSIGN_OR_RETURN(request.top_logprobs, CountFromProto(proto.top_logprobs(), "top_logprobs"));
  return request;
}

absl::StatusOr<ScoreRequest> FromProto(const v1::ScoreRequest& proto) {
  ScoreRequest request;
  request.model = proto.model();
  request.input = Input(proto.input());
  GH_ASSIGN_OR_RETURN(request.gating, Gating(proto.gating()));
  request.window_size = proto.window().size();
  request.stride = proto.window().stride();
  request.blocks = proto.window().blocks();
  GH_ASSIGN_OR_RETURN(request.top_logprobs, CountFromProto(proto.top_logprobs(), "top_logprobs"));
  request.records = Records(proto.records());
  request.summary_only = proto.summary_only();
  GH_ASSIGN_OR_RETURN(request.interventions, FromProto(proto.interventions()));
  GH_ASSIGN_OR_RETURN(request.captures, FromProto(proto.captures()));
  return request;
}

absl::StatusOr<AnalysisRequest> FromProto(const v1::ScoreNonlinearityRequest& proto) {
  GH_ASSIGN_OR_RETURN(AnalysisRequest request, Analysis(proto));
  request.records.nonlinearity = true;
  return request;
}

absl::StatusOr<AnalysisRequest> FromProto(const v1::TraceConsensusRequest& proto) {
  GH_ASSIGN_OR_RETURN(AnalysisRequest request, Analysis(proto));
  request.records.consensus = true;
  return request;
}

}  // namespace gatehouse
