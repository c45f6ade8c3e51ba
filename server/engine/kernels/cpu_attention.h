#ifndef GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_ATTENTION_H_
#define GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "server/engine/kernels/cpu_ops.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/kernels/worker_pool.h"

namespace gatehouse {

// Attention on the CPU (see Kernels::Attention).  Owned by the CPU kernels; one thread
// at a time.
class CpuAttention {
 public:
  CpuAttention(const CpuOps& ops, WorkerPool& pool, at::ScalarType dtype);

  // qkv: [rows, (heads + 2 kv_heads) · head_dim] float32, overwritten → [rows, heads · head_dim].
  at::Tensor Run(at::Tensor& qkv, const ModelConfig& config, int layer, KvLayer& kv, std::span<const Segment> segments,
                 RowGroup group);

 private:
  // One row and what it attends to.
  struct Query {
    int row;
    int position;
    const Segment* segment;
  };

  // Makes cos_ and sin_ reach beyond `last_position`.
  void ExtendAngles(const ModelConfig& config, int last_position);
  // Turns one row's queries and keys and puts its keys and values into their page.
  void PlaceRow(float* row, const ModelConfig& config, const Query& query, KvLayer& kv) const;
  // The queries of one key-value head of one row.  query_heads: [heads / kv_heads, head_dim],
  // out: the same.
  void AttendHead(const float* query_heads, const ModelConfig& config, int kv_head, double scale, const Query& query,
                  const KvLayer& kv, std::vector<float>& scores, float* out) const;
  void AttendRows(const float* qkv, const ModelConfig& config, double scale, const KvLayer& kv,
                  std::span<const Query> queries, float* out);

  const CpuOps& ops_;
  WorkerPool& pool_;
  const at::ScalarType dtype_;
  // Of the angles position · inv_freq[i], row by row of a position; for the last model
  // seen.
  std::vector<float> inv_freq_;
  std::vector<float> cos_, sin_;
  std::vector<std::vector<float>> scores_;  // scratch of each thread
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_KERNELS_CPU_ATTENTION_H_
