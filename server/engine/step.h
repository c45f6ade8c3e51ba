#ifndef GATEHOUSE_SERVER_ENGINE_STEP_H_
#define GATEHOUSE_SERVER_ENGINE_STEP_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/intervention.h"
#include "server/engine/routing.h"
#include "server/engine/sampling.h"

namespace gatehouse {

// Names a sequence of an engine: its token positions and their keys and values.
enum class SequenceId : uint64_t {};

// What a row wants recorded for each of its positions, in every layer.
struct RecordRequest {
  bool routing = false;
  bool nonlinearity = false;  // computes the surrogate beside the full MLP
  bool consensus = false;
  bool gate = false;  // asks every layer's gate beside whatever path is taken
  bool any() const { return routing || nonlinearity || consensus || gate; }
};

// One sequence's share of a step: one or more new positions.  Everything it points
// to outlives the step.
struct Row {
  SequenceId sequence{};
  std::span<const int32_t> tokens;  // the new positions' tokens; at least one
  const RoutingPolicy* policy = nullptr;
  // Samples the token after the last position, when not null.
  SamplingState* sampling = nullptr;
  // Empty, or one per token: the id whose log-probability after that position is
  // wanted, or −1 for none.
  std::span<const int32_t> targets;
  // Most likely ids to return with a sampled token and with each target, at most 20.
  int top_alternatives = 0;
  RecordRequest records;
  // Null: nothing is changed.
  const InterventionPlan* interventions = nullptr;
  std::span<const CaptureSite> captures;
  // Position p of the sequence is position p + this of the interventions and captures.
  int position_offset = 0;
  // Checked between layers: a row whose flag is set stops early, and its sequence
  // keeps the length it had.
  const std::atomic<bool>* cancelled = nullptr;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // nats, of the model's own distribution
};

struct SampledToken {
  TokenLogprob token;
  std::vector<TokenLogprob> top;  // most likely first; ties by lower id
};

// Records of a row's positions, row-major [tokens, layers]; a vector that was not
// asked for is empty.
struct TokenRecords {
  int tokens = 0;
  int layers = 0;
  std::vector<MlpPath> path;            // routing
  std::vector<float> gate_margin;       // routing: p − linear threshold; NaN where no gate decided
  std::vector<float> nonlinearity;      // ‖y − ŷ‖; NaN where the full MLP was not computed
  std::vector<float> output_norm;       // nonlinearity or consensus: ‖what the MLP wrote‖
  std::vector<int16_t> level;           // consensus: how many fire; −1 where neither MLP nor quorum gate knows
  std::vector<uint64_t> fired;          // consensus: bit i is the calibration's i-th consensus neuron
  std::vector<uint64_t> exceptions;     // consensus: likewise for its exception neurons
  std::vector<float> gate_probability;  // gate: p of the layer's gate
};

// What a step did for one row.
struct RowResult {
  // Cancelled when the row's flag stopped it; Internal when the model produced NaN;
  // OutOfRange when the sequence would outgrow the context.  A row that failed leaves
  // its sequence as it was and does not touch the other rows.
  absl::Status status;
  std::optional<SampledToken> sampled;
  std::vector<float> target_logprobs;                 // [tokens], NaN where no target
  std::vector<std::vector<TokenLogprob>> target_top;  // [tokens] when top_alternatives > 0 and targets given
  // Positions of this row that went linear, took the ladder and skipped the MLP, per layer; the
  // rest went full.
  std::vector<uint32_t> linear_tokens, ladder_tokens, skip_tokens;  // [layers]
  // Positions for which the layer's gate, or its consensus neurons, were asked to decide.
  std::vector<uint32_t> gated_tokens, quorum_tokens;  // [layers]
  TokenRecords records;
  std::vector<CapturedSite> captured;  // one per capture of the row, in order
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_STEP_H_
