#ifndef GATEHOUSE_CLIENT_LOAD_WORKLOAD_H_
#define GATEHOUSE_CLIENT_LOAD_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "client/load/trace.h"

namespace gatehouse::client {

// A request that is to be sent.
struct PlannedCall {
  double at = 0;  // seconds after the start; a closed loop sends it when another has ended
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
};

// The requests in the order of sending; nothing at the end.
using CallPlan = std::function<std::optional<PlannedCall>()>;

// Random numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [0, 1).
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  // In [low, high].
  uint32_t Between(uint32_t low, uint32_t high);
  // The time between two arrivals at `rate` a second, where arrivals do not know of each other.
  double Gap(double rate);

 private:
  std::mt19937_64 engine_;
};

// Lengths of requests, drawn evenly from both ends on.
struct LengthRange {
  uint32_t low = 1, high = 1;
};

// Keeps requests within a model's context: generated tokens to half of it, then the prompt to
// what is left; at least one of each.  Counts those it cut.
class LengthLimit {
 public:
  explicit LengthLimit(uint32_t context_tokens) : context_(context_tokens) {}
  PlannedCall Fit(PlannedCall call);
  size_t cut() const { return cut_; }

 private:
  uint32_t context_;
  size_t cut_ = 0;
};

// At most `limit` requests one after another, without times (rate 0) or as a Poisson process of that
// many a second.  `lengths` outlives the plan.
CallPlan RandomPlan(double rate, LengthRange prompt, LengthRange generated, size_t limit, uint64_t seed,
                    LengthLimit& lengths);
// The trace, `speed` times as fast.
CallPlan TracePlan(std::vector<TraceEntry> trace, double speed, LengthLimit& lengths);

// Prompts of exactly the wanted length: pieces of a text's tokens, from places drawn at random,
// or tokens drawn at random.  Thread-safe.
class PromptSource {
 public:
  // From these tokens, at least one, begun again at their end.
  PromptSource(std::vector<int32_t> text, uint64_t seed) : text_(std::move(text)), seed_(seed) {}
  // Drawn from [0, vocabulary) without `excluded`.
  PromptSource(uint32_t vocabulary, std::vector<int32_t> excluded, uint64_t seed);

  // The prompt of the request of that number.
  std::vector<int32_t> Make(uint64_t number, uint32_t tokens) const;

 private:
  std::vector<int32_t> text_;
  uint32_t vocabulary_ = 0;
  std::vector<int32_t> excluded_;
  uint64_t seed_;
};

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_LOAD_WORKLOAD_H_
