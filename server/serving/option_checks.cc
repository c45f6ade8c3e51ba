#include "server/serving/option_checks.h"

#include <set>

#include "server/base/error_reason.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();

std::string Bounds(double least, double most) {
  return most == kMost ? StrCat("at least ", least, " and finite") : StrCat("in [", least, ", ", most, "]");
}

}  // namespace

absl::Status CheckCount(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", must be in [", least, ", ", most, "]"));
}

absl::Status CheckNumber(std::string_view field, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", must be ", Bounds(least, most)));
}

absl::Status CheckAbove(std::string_view field, double value, double least, double most) {
  if (value > least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", must be above ", least, " and ",
                                           most == kMost ? std::string("finite") : StrCat("at most ", most)));
}

absl::Status CheckProperShare(std::string_view field, double value) {
  if (value > 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", must be in (0, 1)"));
}

absl::Status CheckDistinct(std::string_view field, const std::vector<int>& values, int least, int most,
                           size_t max_entries) {
  if (values.size() > max_entries) {
    return absl::InvalidArgumentError(
        StrCat(field, " has ", values.size(), " entries, at most ", max_entries, " are allowed"));
  }
  std::set<int> seen;
  for (const int value : values) {
    GH_RETURN_IF_ERROR(CheckCount(field, value, least, most));
    if (!seen.insert(value).second) {
      return absl::InvalidArgumentError(StrCat(field, " has ", value, " twice, must have each once"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(std::string_view field, const std::vector<int>& layers, const ModelInfo& model) {
  for (const int layer : layers) {
    const absl::Status status = CheckCount(field, layer, 0, model.layers - 1);
    if (!status.ok()) return WithReason(status, reason::kLayerOutOfRange);
  }
  return CheckDistinct(field, layers, 0, model.layers - 1, layers.size());
}

}  // namespace gatehouse
