#ifndef GATEHOUSE_SERVER_SERVING_OPTION_CHECKS_H_
#define GATEHOUSE_SERVER_SERVING_OPTION_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/engine/model_info.h"

namespace gatehouse {

// What operations have to be told, checked before they start.  Each fails as
// InvalidArgument, naming the field and its bound.

absl::Status CheckCount(std::string_view field, int64_t value, int64_t least, int64_t most);
// In [least, most], so that NaN fails.
absl::Status CheckNumber(std::string_view field, double value, double least,
                         double most = std::numeric_limits<double>::max());
// The same without `least` itself.
absl::Status CheckAbove(std::string_view field, double value, double least,
                        double most = std::numeric_limits<double>::max());
// In (0, 1).
absl::Status CheckProperShare(std::string_view field, double value);
// Each in [least, most] and there once; at most `max_entries`.
absl::Status CheckDistinct(std::string_view field, const std::vector<int>& values, int least, int most,
                           size_t max_entries);
// Layers of the model, each once; the reason of one that is not there is LAYER_OUT_OF_RANGE.
absl::Status CheckLayers(std::string_view field, const std::vector<int>& layers, const ModelInfo& model);

// Token counts, window and sinks, which calibrations and experiments have in common.
template <typename Options>
absl::Status CheckSplitOptions(const Options& options, const ModelInfo& model) {
  constexpr int64_t kMaxTokens = int64_t{1} << 31;
  GH_RETURN_IF_ERROR(CheckCount("fit_tokens", options.fit_tokens, 0, kMaxTokens));
  GH_RETURN_IF_ERROR(CheckCount("gate_tokens", options.gate_tokens, 0, kMaxTokens));
  GH_RETURN_IF_ERROR(CheckCount("select_tokens", options.select_tokens, 0, kMaxTokens));
  GH_RETURN_IF_ERROR(CheckCount("report_tokens", options.report_tokens, 0, kMaxTokens));
  int window = std::min(512, model.context);
  if (options.window_tokens != 0) {
    GH_RETURN_IF_ERROR(CheckCount("window_tokens", options.window_tokens, 2, model.context));
    window = options.window_tokens;
  }
  // At least two tokens beyond the sinks: one to replace, one to predict.
  return CheckCount("sink_positions", options.sink_positions, 0, std::min(1024, window - 2));
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OPTION_CHECKS_H_
