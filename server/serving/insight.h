#ifndef GATEHOUSE_SERVER_SERVING_INSIGHT_H_
#define GATEHOUSE_SERVER_SERVING_INSIGHT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "server/engine/routing.h"
#include "server/engine/step.h"
#include "server/serving/requests.h"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse {

// What was recorded at position `row` of a row's records, of token `id` at `position`
// of its sequence.
TokenInsight InsightAt(const TokenRecords& records, int row, int32_t id, int position, const Tokenizer& tokenizer);

std::vector<TokenAlternative> Alternatives(std::span<const TokenLogprob> top, const Tokenizer& tokenizer);

// The routing of one call: exactly the sum of its rows.  Not thread-safe.
class RoutingTally {
 public:
  explicit RoutingTally(int layers) : full_(layers, 0), linear_(layers, 0) {}

  // A row of `tokens` positions, of which linear_tokens[layer] went linear.
  void Add(int tokens, std::span<const uint32_t> linear_tokens);
  RoutingReport Report(const RoutingPolicy& policy) const;

 private:
  std::vector<uint64_t> full_, linear_;  // [layers]
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_INSIGHT_H_
