#ifndef GATEHOUSE_TESTS_BENCH_PARTITION_TIMES_H_
#define GATEHOUSE_TESTS_BENCH_PARTITION_TIMES_H_

#include <map>
#include <vector>

#include "server/engine/kernels/kernels.h"
#include "server/engine/model/weights.h"

namespace gatehouse {

// How long the matrix products of one layer's MLP, surrogate and ladder take at a number of
// rows: what an ideal router would pay for a step's partitions, without gates, gather
// or scatter.  Measured on all layers in turn, so that weights come from memory as they do
// in a step.  Used by one thread.
class PartitionTimes {
 public:
  // Both outlive this object.
  PartitionTimes(const ModelWeights& model, Kernels& kernels);

  // Seconds for one layer at `rows` rows; 0 at 0 rows.
  double Full(int rows);
  double Linear(int rows);
  // Of a ladder with that many neurons.
  double Ladder(int rows, int neurons);

 private:
  template <typename Run>
  double Measure(int rows, std::map<int, double>& known, Run run);

  const ModelWeights& model_;
  Kernels& kernels_;
  LinearWeights Random(int64_t outputs, int64_t inputs) const;
  at::Tensor Hidden(const at::Tensor& x, const LinearWeights& in);

  // [layers] each, of random numbers; the ladders' are of `ladder_neurons_`.
  std::vector<LinearWeights> surrogates_, ladder_in_, ladder_joint_;
  int ladder_neurons_ = 0;
  std::map<int, double> full_, linear_, ladder_;  // by rows
};

}  // namespace gatehouse

#endif  // GATEHOUSE_TESTS_BENCH_PARTITION_TIMES_H_
