#include "client/load/workload.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gatehouse::client {
namespace {

// A seed for each request, so that its prompt does not depend on those before it.
uint64_t Mixed(uint64_t seed, uint64_t number) {
  uint64_t x = seed + (number + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

uint32_t Random::Between(uint32_t low, uint32_t high) {
  return low + static_cast<uint32_t>(Uniform() * (static_cast<double>(high) - low + 1));
}

double Random::Gap(double rate) { return -std::log(1 - Uniform()) / rate; }

PlannedCall LengthLimit::Fit(PlannedCall call) {
  const PlannedCall wanted = call;
  call.generated_tokens = std::clamp(call.generated_tokens, 1u, std::max(1u, context_ / 2));
  call.prompt_tokens =
      std::clamp(call.prompt_tokens, 1u, context_ > call.generated_tokens ? context_ - call.generated_tokens : 1u);
  if (call.generated_tokens < wanted.generated_tokens || call.prompt_tokens < wanted.prompt_tokens) ++cut_;
  return call;
}

CallPlan RandomPlan(double rate, LengthRange prompt, LengthRange generated, size_t limit, uint64_t seed,
                    LengthLimit& lengths) {
  return [=, &lengths, random = Random(seed), at = 0.0, sent = size_t{0}]() mutable -> std::optional<PlannedCall> {
    if (sent++ >= limit) return std::nullopt;
    if (rate > 0) at += random.Gap(rate);
    const uint32_t prompt_tokens = random.Between(prompt.low, prompt.high);
    return lengths.Fit({at, prompt_tokens, random.Between(generated.low, generated.high)});
  };
}

CallPlan TracePlan(std::vector<TraceEntry> trace, double speed, LengthLimit& lengths) {
  return [=, &lengths, trace = std::move(trace), next = size_t{0}]() mutable -> std::optional<PlannedCall> {
    if (next >= trace.size()) return std::nullopt;
    const TraceEntry& entry = trace[next++];
    return lengths.Fit({entry.seconds / speed, entry.prompt_tokens, entry.generated_tokens});
  };
}

PromptSource::PromptSource(uint32_t vocabulary, std::vector<int32_t> excluded, uint64_t seed)
    : vocabulary_(vocabulary), excluded_(std::move(excluded)), seed_(seed) {}

std::vector<int32_t> PromptSource::Make(uint64_t number, uint32_t tokens) const {
  Random random(Mixed(seed_, number));
  std::vector<int32_t> prompt;
  prompt.reserve(tokens);
  if (!text_.empty()) {
    size_t place = random.Between(0, static_cast<uint32_t>(text_.size() - 1));
    while (prompt.size() < tokens) prompt.push_back(text_[place++ % text_.size()]);
    return prompt;
  }
  // A vocabulary of excluded tokens alone has to do.
  const bool can_exclude = excluded_.size() < vocabulary_;
  while (prompt.size() < tokens) {
    const auto id = static_cast<int32_t>(random.Between(0, vocabulary_ - 1));
    const bool excluded = std::find(excluded_.begin(), excluded_.end(), id) != excluded_.end();
    if (!excluded || !can_exclude) prompt.push_back(id);
  }
  return prompt;
}

}  // namespace gatehouse::client
