#include "server/engine/gating/row_set.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

namespace gatehouse {

at::Tensor RowSet::Gather(const at::Tensor& x) const {
  if (size() == x.size(0)) return x;
  if (empty() || side_by_side()) return x.narrow(0, empty() ? 0 : rows_.front(), size());
  return at::index_select(x, 0, Indices(x));
}

void RowSet::Scatter(const at::Tensor& part, at::Tensor& y) const {
  if (empty()) return;
  if (side_by_side()) {
    y.narrow(0, rows_.front(), size()).copy_(part);
  } else {
    y.index_copy_(0, Indices(y), part);
  }
}

at::Tensor RowSet::Indices(const at::Tensor& like) const { return at::tensor(rows_, at::kLong).to(like.device()); }

}  // namespace gatehouse
