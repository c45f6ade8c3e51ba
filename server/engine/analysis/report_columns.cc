#include "server/engine/analysis/report_columns.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "server/base/strings.h"

namespace gatehouse {

ReportArray ArrayOf(std::string name, const at::Tensor& tensor) {
  ReportArray array{std::move(name), tensor.sizes().vec(), {}};
  const auto copy = [&]<typename T>(at::ScalarType type) {
    const at::Tensor values = tensor.to(at::TensorOptions(type).device(at::kCPU)).contiguous();
    const T* begin = values.const_data_ptr<T>();
    array.values = std::vector<T>(begin, begin + values.numel());
  };
  if (tensor.is_floating_point()) {
    copy.template operator()<float>(at::kFloat);
  } else {
    copy.template operator()<int64_t>(at::kLong);
  }
  return array;
}

std::string SignedPercent(double share) { return absl::StrFormat("%+.2f %%", 100 * share); }

std::string SignedPercent(const Interval& interval) {
  return StrCat(SignedPercent(interval.estimate), " [", SignedPercent(interval.low), ", ", SignedPercent(interval.high),
                "]");
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

}  // namespace gatehouse
