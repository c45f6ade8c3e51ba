#ifndef GATEHOUSE_SERVER_SERVING_OBSERVER_H_
#define GATEHOUSE_SERVER_SERVING_OBSERVER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/engine/engine.h"
#include "server/serving/requests.h"

namespace gatehouse {

enum class Phase { kPrefill, kDecode, kScore };

// How many tokens of a row took each path in each layer; the others went full.
struct PathTokens {
  std::span<const uint32_t> linear, ladder, skip;  // [layers]
};

// How one call ended.
struct CallObservation {
  std::string model;   // empty where the request named no model this server has
  std::string method;  // "generate", "score", "nonlinearity" or "consensus"
  absl::StatusCode code = absl::StatusCode::kOk;
  std::optional<FinishReason> finish_reason;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0, total_seconds = 0;
  std::optional<double> first_token_seconds;
};

// Watches what the scheduler does; telemetry implements it.  Called from the
// scheduler's thread and from callers' threads; thread-safe and quick.
class Observer {
 public:
  virtual ~Observer() = default;

  // One row of a step: `tokens` positions, and how many of them took which path.  Called before
  // the call's own report is sent, with the same numbers.
  virtual void OnRouted(std::string_view model, Phase phase, int tokens, const PathTokens& paths) = 0;
  virtual void OnInterToken(std::string_view model, double seconds) = 0;
  virtual void OnStep(std::string_view model, int rows, int tokens, double seconds) = 0;
  virtual void OnCallEnd(const CallObservation& call) = 0;
};

// What the scheduler has to do right now, for gauges and status.  Never waits for the
// engine.
struct ModelLoad {
  std::string model;
  int running = 0;
  int waiting = 0;
  int64_t waiting_prompt_tokens = 0;
  KvUsage kv;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OBSERVER_H_
