#ifndef GATEHOUSE_SERVER_ENGINE_ANALYSIS_EXPERIMENT_SETUP_H_
#define GATEHOUSE_SERVER_ENGINE_ANALYSIS_EXPERIMENT_SETUP_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/status_macros.h"
#include "server/engine/analysis/corpus_splits.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/analysis/split_stream.h"
#include "server/engine/analysis/work.h"

namespace gatehouse {

// What the experiments of the single layers (A.2 to A.5) have in common.  Their blocks are
// those of a calibration with the same options and seed, so that figures can be compared.

struct CorpusPlan {
  const Corpus* corpus = nullptr;
  std::string name;  // its label, made unique; "corpus 2" where it has none
  CorpusSplits splits;

  SplitStream Stream(const ModelWeights& model, std::span<const int64_t> blocks) const {
    return SplitStream(model, corpus->tokens, blocks, splits.window);
  }
  // The blocks that no surrogate is fitted on, ascending.
  std::vector<int64_t> HeldOut() const;
};

// Plans every corpus before any work is done.  InvalidArgument, with the corpus's name, where
// one is too short.
absl::StatusOr<std::vector<CorpusPlan>> PlanCorpora(const ExperimentContext& context);

// The layers that were asked for, ascending; all where none was.
std::vector<int> ChosenLayers(const ExperimentContext& context);

// Takes the streams through the model up to the last of `layers` (ascending), each of which is
// studied while the streams have entered it; the others are only passed through.  `before` is
// called before a chosen layer is entered, where given.
using LayerFn = std::function<absl::Status(int layer)>;
absl::Status ForLayers(const std::vector<int>& layers, std::span<SplitStream* const> streams, std::string_view stage,
                       Work& work, const LayerFn& study, const LayerFn& before = nullptr);
// What that takes for each token of the streams beside the studies, in the unit of Work: an
// evaluation of one layer for one token.
double PassingWork(const std::vector<int>& layers);

// Runs the full model on a split: Internal where its cross-entropies are not finite.
absl::Status MeasureFullModel(SplitStream& split, Work& work);

// Runs a study on each corpus in turn.  It says with WorkOf(plan) how much there is to do, in
// the unit of Work, and does it with Run(plan, work).
template <typename Study>
absl::Status RunOnEach(const ExperimentContext& context, std::span<const CorpusPlan> plans, Study& study) {
  double total = 0;
  for (const CorpusPlan& plan : plans) total += study.WorkOf(plan);
  Work work(total, context.progress, context.cancelled);
  for (const CorpusPlan& plan : plans) GH_RETURN_IF_ERROR(study.Run(plan, work));
  return absl::OkStatus();
}

// The settings that repeat an experiment, and what a reader has to know of any of them.
void DescribeProtocol(const ExperimentContext& context, std::span<const CorpusPlan> plans, Report& report);

// What a plot groups its rows by: the corpus too where there are several.
std::string SeriesName(std::span<const CorpusPlan> plans, const CorpusPlan& plan, std::string_view within);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_ANALYSIS_EXPERIMENT_SETUP_H_
