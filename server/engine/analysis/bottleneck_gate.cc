#include "server/engine/analysis/bottleneck_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/item.h>
#include <ATen/ops/mv.h>

#include <algorithm>

#include "server/base/status_macros.h"
#include "server/engine/analysis/principal_axes.h"

namespace gatehouse {

absl::StatusOr<std::vector<LogisticGate>> FitBottleneckGates(const at::Tensor& x, std::span<const uint8_t> labels,
                                                             std::span<const int> bottlenecks) {
  std::vector<LogisticGate> gates;
  if (bottlenecks.empty()) return gates;
  if (!x.isfinite().all().item<bool>()) return absl::FailedPreconditionError("the inputs of a gate are not finite");
  const PrincipalAxes axes = PrincipalAxes::Of(x, 2 * *std::max_element(bottlenecks.begin(), bottlenecks.end()));
  const at::Tensor scores = axes.Scores(x);
  for (const int bottleneck : bottlenecks) {
    GH_ASSIGN_OR_RETURN(const LogisticGate narrow, FitLogisticGate(scores.narrow(1, 0, 2 * bottleneck), labels));
    const at::Tensor weight = at::mv(axes.axes.narrow(1, 0, 2 * bottleneck), narrow.weight.to(at::kDouble));
    gates.push_back({weight.to(at::kFloat), (narrow.bias - at::dot(weight, axes.mean)).to(at::kFloat)});
  }
  return gates;
}

}  // namespace gatehouse
