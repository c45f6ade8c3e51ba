#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_CORPUS_SPLITS_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_CORPUS_SPLITS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/calibration.h"
#include "server/engine/model/config.h"

namespace gatehouse {

// Which blocks of a corpus serve which purpose.  A block is `window` tokens; block i
// starts at token i · window.  No block serves two purposes.
struct CorpusSplits {
  int window = 0;
  // Block indices, ascending: surrogates are fitted on the first, gates on the second,
  // choices are made on the third, and figures are reported on the fourth.
  std::vector<int64_t> fit, gate, select, report;
};

// Deals the corpus's blocks to the splits: evenly spaced blocks where the corpus is
// longer than needed, dealt in an order drawn from the seed.  A default size (count 0)
// shrinks in proportion where the corpus is shorter; a size that was asked for does not.
// InvalidArgument, naming the option or the number of tokens needed, otherwise.
absl::StatusOr<CorpusSplits> PlanSplits(const CalibrateOptions& options, int64_t corpus_tokens,
                                        const ModelConfig& model);

// InvalidArgument where the corpus is one token over and over: there is nothing to fit to it.
absl::Status CheckVariety(std::span<const int32_t> tokens);

// The figures of the report split are given with bootstrap intervals over its blocks, which
// one block alone would make look exact.  InvalidArgument, naming the option, where it has
// but one.
absl::Status CheckIntervalsExist(const CorpusSplits& splits);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_CORPUS_SPLITS_H_
