#include "server/engine/analysis/consensus_prediction.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/item.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>
#include <vector>

#include "server/base/status_macros.h"
#include "server/engine/analysis/logistic_gate.h"
#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/analysis/surrogate_fit.h"
#include "server/engine/gating/firing.h"

namespace gatehouse {
namespace {

template <typename T>
std::span<const T> SpanOf(const at::Tensor& values) {
  return {values.const_data_ptr<T>(), static_cast<size_t>(values.numel())};
}

// The tokens of a trace that are no sinks, in order.
struct Tokens {
  at::Tensor binary, continuous;  // [n, k] float32
  at::Tensor norm;                // [n, 1] float32
  at::Tensor residual;            // [n] float64
  at::Tensor block;               // [n] int64

  explicit Tokens(const ConsensusTrace& trace) {
    const at::Tensor kept = trace.kept.cpu();
    continuous = trace.consensus.cpu().index({kept});
    binary = (continuous > kFiringThreshold).to(at::kFloat);
    norm = trace.norm.cpu().index({kept}).to(at::kFloat).unsqueeze(1);
    residual = trace.residual.cpu().index({kept});
    block = kept.nonzero().select(1, 0).contiguous();
  }
};

// What a reading came to at each token, so that blocks can be drawn.
struct Scored {
  at::Tensor probability;  // [n] float64
  at::Tensor right;        // [n] float64, 0 or 1
  at::Tensor squares;      // of the error of ‖y‖, [n] float64
};

class Comparison {
 public:
  Comparison(const Tokens& train, const Tokens& test, int64_t blocks, double ridge, int resamples, uint64_t seed)
      : train_(train), test_(test), blocks_(blocks), ridge_(ridge), resamples_(resamples), seed_(seed) {
    std::vector<double> sorted(SpanOf<double>(train.residual).begin(), SpanOf<double>(train.residual).end());
    std::sort(sorted.begin(), sorted.end());
    limit_ = Quantile(sorted, 0.75);
    top_ = (test.residual > limit_).to(at::kByte);
    spread_ = (test.norm - train.norm.mean()).to(at::kDouble).squeeze(1).square();
  }

  absl::StatusOr<Scored> Score(const at::Tensor& train, const at::Tensor& test) const {
    const at::Tensor labels = (train_.residual > limit_).to(at::kByte);
    GH_ASSIGN_OR_RETURN(const LogisticGate regression, FitLogisticGate(train, SpanOf<uint8_t>(labels)));
    RidgeSums sums(train.size(1), 1, train.device());
    sums.Add(train, train_.norm);
    GH_ASSIGN_OR_RETURN(const Surrogate line, sums.Solve(ridge_));
    Scored scored{regression.Probability(test).to(at::kDouble).contiguous(), {}, {}};
    scored.right = ((scored.probability > 0.5) == top_.to(at::kBool)).to(at::kDouble);
    scored.squares = (test_.norm - line.Predict(test)).to(at::kDouble).squeeze(1).square();
    return scored;
  }

  ConsensusReading Read(const Scored& scored) const {
    return {.accuracy = MeanOf(scored.right),
            .gain = MeanOf(scored.right - (1 - top_.to(at::kDouble))),
            .auc = BootstrapAuc(SpanOf<double>(scored.probability), SpanOf<uint8_t>(top_), SpanOf<int64_t>(test_.block),
                                blocks_, resamples_, seed_),
            .r2 = BlockBootstrap(SumsOf({scored.squares, spread_}), resamples_, seed_, [](const at::Tensor& totals) {
              return 1 - totals.select(1, 0) / totals.select(1, 1);
            })};
  }

  absl::StatusOr<ConsensusPrediction> Run() const {
    GH_ASSIGN_OR_RETURN(const Scored binary, Score(train_.binary, test_.binary));
    GH_ASSIGN_OR_RETURN(const Scored continuous, Score(train_.continuous, test_.continuous));
    return ConsensusPrediction{.limit = limit_,
                               .base_rate = 1 - top_.to(at::kDouble).mean().item<double>(),
                               .binary = Read(binary),
                               .continuous = Read(continuous),
                               .accuracy_difference = MeanOf(continuous.right - binary.right),
                               .auc_difference = BootstrapAucDifference(
                                   SpanOf<double>(continuous.probability), SpanOf<double>(binary.probability),
                                   SpanOf<uint8_t>(top_), SpanOf<int64_t>(test_.block), blocks_, resamples_, seed_),
                               .r2_difference = BlockBootstrap(
                                   SumsOf({binary.squares - continuous.squares, spread_}), resamples_, seed_,
                                   [](const at::Tensor& totals) { return totals.select(1, 0) / totals.select(1, 1); })};
  }

 private:
  // Each block's sums: [blocks, columns] float64.
  at::Tensor SumsOf(const std::vector<at::Tensor>& columns) const {
    at::Tensor sums = at::zeros({blocks_, static_cast<int64_t>(columns.size())}, at::kDouble);
    return sums.index_add_(0, test_.block, at::stack(columns, 1));
  }
  Interval MeanOf(const at::Tensor& values) const {
    return BlockBootstrap(SumsOf({values, at::ones_like(values)}), resamples_, seed_,
                          [](const at::Tensor& totals) { return totals.select(1, 0) / totals.select(1, 1); });
  }

  const Tokens &train_, &test_;
  const int64_t blocks_;  // of the test
  const double ridge_;
  const int resamples_;
  const uint64_t seed_;
  double limit_ = 0;
  at::Tensor top_;     // [n] uint8: in the top quarter
  at::Tensor spread_;  // squared distance of ‖y‖ from the mean of the tokens fitted on, [n] float64
};

}  // namespace

absl::StatusOr<ConsensusPrediction> PredictFromConsensus(const ConsensusTrace& train, const ConsensusTrace& test,
                                                         double ridge, int resamples, uint64_t seed) {
  const Tokens fitted(train), held_out(test);
  return Comparison(fitted, held_out, test.kept.size(0), ridge, resamples, seed).Run();
}

}  // namespace gatehouse
