#ifndef GATEHOUSE_SERVER_SERVING_REQUESTS_H_
#define GATEHOUSE_SERVER_SERVING_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/calibration.h"
#include "server/engine/intervention.h"
#include "server/engine/routing.h"
#include "server/engine/sampling.h"
#include "server/engine/step.h"

namespace gatehouse {

// The requests and events of the calls that run on the engine, free of the wire
// format; proto/gatehouse/v1 documents every field and bound.

// A text, or the tokens of one.
struct InputText {
  std::optional<std::string> text;  // UTF-8
  std::vector<int32_t> token_ids;   // used where `text` is absent
  bool plain_text = false;
};

struct GatingChoice {
  GatingRequest request;
  std::string calibration;  // name; empty: the active one
};

struct StopConditions {
  std::vector<std::string> strings;
  std::vector<int32_t> token_ids;
  bool ignore_eos = false;
};

// What was recorded at one token: vectors have one entry a layer or are empty.
struct TokenInsight {
  int32_t id = 0;
  int position = 0;
  std::string raw;
  std::vector<MlpPath> paths;
  std::vector<float> gate_margin;
  std::vector<float> nonlinearity;
  std::vector<float> output_norm;
  std::vector<int> level;       // −1 where unknown
  std::vector<uint64_t> fired;  // bits index the calibration's consensus neurons
  std::vector<uint64_t> exceptions;
  std::vector<float> gate_probability;
};

struct TokenAlternative {
  int32_t id = 0;
  float logprob = 0;
  std::string raw;
};

struct RoutingReport {
  uint64_t decisions = 0;
  uint64_t linear_decisions = 0;
  uint64_t ladder_decisions = 0;
  uint64_t skip_decisions = 0;
  double mlp_work_saved = 0;            // see server/engine/mlp_work.h
  std::vector<uint64_t> full_tokens;    // [layers]
  std::vector<uint64_t> linear_tokens;  // [layers]
  std::vector<uint64_t> ladder_tokens;  // [layers]
  std::vector<uint64_t> skip_tokens;    // [layers]
  std::string calibration;
  std::vector<std::string> notes;
  double linear_fraction() const {
    return decisions == 0 ? 0 : static_cast<double>(linear_decisions) / static_cast<double>(decisions);
  }
};

// Activations to send, of these layers (none: all) and positions (none: all).
struct ActivationCapture {
  std::vector<int> layers = {};
  ActivationSite site = ActivationSite::kResidualPre;
  std::vector<int> positions = {};
};

// What was captured at one site of one layer.
struct Activations {
  int layer = 0;
  ActivationSite site = ActivationSite::kResidualPre;
  int width = 0;
  std::vector<int> positions;
  std::vector<float> values;  // row-major [positions, width]
};

// ---- Generate ----

struct GenerateRequest {
  std::string model;
  InputText prompt;
  std::optional<uint32_t> max_tokens;
  SamplingParams sampling;
  bool has_seed = false;  // else a fresh one is drawn
  StopConditions stop;
  GatingChoice gating;
  RecordRequest records;
  bool record_prompt = false;
  int top_logprobs = 0;
  std::vector<Intervention> interventions;
  std::vector<ActivationCapture> captures;
};

enum class FinishReason { kLength, kEos, kStopString, kStopToken };

struct GenerationStart {
  int prompt_tokens = 0;
  int max_tokens = 0;
};

struct GeneratedToken {
  int32_t id = 0;
  std::string text;
  std::string raw;
  float logprob = 0;
  std::vector<TokenAlternative> top;
  std::optional<TokenInsight> insight;
};

struct GenerationSummary {
  FinishReason finish_reason = FinishReason::kLength;
  std::string matched_stop;
  std::string text;
  int prompt_tokens = 0;
  int generated_tokens = 0;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  RoutingReport routing;
  uint64_t seed = 0;
};

// ---- Score ----

struct ScoreRequest {
  std::string model;
  InputText input;
  GatingChoice gating;
  uint32_t window_size = 0;  // 0: the context
  uint32_t stride = 0;       // 0: the size
  bool blocks = false;
  int top_logprobs = 0;
  RecordRequest records;
  bool summary_only = false;
  std::vector<Intervention> interventions;
  std::vector<ActivationCapture> captures;
};

struct ScoredToken {
  int32_t id = 0;
  int64_t position = 0;
  std::string raw;
  std::optional<float> logprob;
  std::vector<TokenAlternative> top;
  std::optional<TokenInsight> insight;
};

struct ScoreSummary {
  uint64_t tokens = 0;
  uint64_t scored_tokens = 0;
  double total_logprob = 0;
  std::optional<double> perplexity;
  uint32_t windows = 0;
  double seconds = 0;
  RoutingReport routing;
};

// ---- Analysis: nonlinearity scores and consensus traces ----

struct AnalysisRequest {
  std::string model;
  std::vector<InputText> inputs;
  GatingChoice gating;
  // What is recorded: nonlinearity for ScoreNonlinearity, consensus for TraceConsensus.
  RecordRequest records;
};

struct InsightTokens {
  int input = 0;
  std::vector<TokenInsight> tokens;
};

struct AnalysisSummary {
  uint64_t tokens = 0;
  double seconds = 0;
  RoutingReport routing;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_REQUESTS_H_
