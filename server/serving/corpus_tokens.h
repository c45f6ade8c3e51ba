#ifndef GATEHOUSE_SERVER_SERVING_CORPUS_TOKENS_H_
#define GATEHOUSE_SERVER_SERVING_CORPUS_TOKENS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/serving/corpora.h"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse {

// The tokens of a corpus, read in pieces.  Reports progress in [0, 1]; Cancelled soon after
// `cancelled` is set; DataLoss where the file no longer holds what was uploaded.
absl::StatusOr<std::vector<int32_t>> ReadCorpusTokens(const CorpusStore::Found& corpus, const Tokenizer& tokenizer,
                                                      const ProgressFn& progress, const std::atomic<bool>& cancelled);

// Share of an operation's progress that reading its corpora makes up.
inline constexpr double kReadingShare = 0.05;

// Progress of a part that makes up [begin, end] of `whole`, which outlives it.
ProgressFn PartOf(const ProgressFn& whole, double begin, double end);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_CORPUS_TOKENS_H_
