#ifndef GATEHOUSE_SERVER_ENGINE_GATING_ROW_SET_H_
#define GATEHOUSE_SERVER_ENGINE_GATING_ROW_SET_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gatehouse {

// Some rows of a matrix, in ascending order, that are computed together.  Rows that lie
// side by side are views of the matrix; only scattered ones are copied.
class RowSet {
 public:
  // REQUIRES: `row` is above every row added before.
  void Add(int64_t row) { rows_.push_back(row); }

  bool empty() const { return rows_.empty(); }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t operator[](int64_t index) const { return rows_[index]; }

  // x [n, width] → [size(), width], contiguous.
  at::Tensor Gather(const at::Tensor& x) const;

  // The other way: writes part [size(), width] to these rows of y [n, width].
  void Scatter(const at::Tensor& part, at::Tensor& y) const;

 private:
  bool side_by_side() const { return rows_.back() - rows_.front() + 1 == size(); }
  at::Tensor Indices(const at::Tensor& like) const;

  std::vector<int64_t> rows_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_GATING_ROW_SET_H_
