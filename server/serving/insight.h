#ifndef GATEHOUSE_SERVER_SERVING_INSIGHT_H_
#define GATEHOUSE_SERVER_SERVING_INSIGHT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/engine/mlp_work.h"
#include "server/engine/model_info.h"
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
  // `model` outlives this.
  explicit RoutingTally(const ModelInfo& model) : model_(model), layers_(model.layers) {}

  // A row of `tokens` positions.
  void Add(int tokens, const RowResult& result);
  // `notes`: what the caller should know beside the policy's own notes.
  RoutingReport Report(const RoutingPolicy& policy, std::span<const std::string> notes = {}) const;

 private:
  const ModelInfo& model_;
  std::vector<LayerTraffic> layers_;  // [layers]
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_INSIGHT_H_
