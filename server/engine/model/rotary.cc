#include "server/engine/model/rotary.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <initializer_list>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

constexpr double kMaxTheta = 1e30;
constexpr double kMaxFactor = 1e6;
constexpr int64_t kMaxContext = int64_t{1} << 26;

// Refuses what the scaling kind does not use: silently ignoring it would change the text.
absl::Status CheckKeys(const JsonObject& rope, std::string_view type, std::initializer_list<std::string_view> extra) {
  constexpr std::string_view kCommon[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor",
                                          "original_max_position_embeddings"};
  for (const std::string& key : rope.Keys()) {
    const bool known = std::find(std::begin(kCommon), std::end(kCommon), key) != std::end(kCommon) ||
                       std::find(extra.begin(), extra.end(), key) != extra.end();
    if (!known) return rope.Error(key, StrCat("is unknown for rope_type \"", type, "\""));
  }
  return absl::OkStatus();
}

// The object that holds the rotary settings: empty where config.json has none.
absl::StatusOr<JsonObject> RopeObject(const JsonObject& config) {
  const nlohmann::json* scaling = config.Find("rope_scaling");
  const nlohmann::json* parameters = config.Find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return config.Error("rope_scaling", "contradicts rope_parameters; give one of them");
  }
  return config.ObjectOr(scaling != nullptr ? "rope_scaling" : "rope_parameters");
}

// theta^(−2i / dims) in the reference's own float32 arithmetic.
absl::StatusOr<std::vector<float>> BaseFrequencies(double theta, int dims) {
  std::vector<float> frequencies;
  GH_RETURN_IF_ERROR(AtTorchBoundary([&] {
    const at::Tensor exponents = at::arange(0, dims, 2, at::kFloat).div(dims);
    const at::Tensor powers = at::pow(at::Scalar(theta), exponents);
    const float* data = powers.const_data_ptr<float>();
    for (int64_t i = 0; i < powers.numel(); ++i) frequencies.push_back(1.0f / data[i]);
    return absl::OkStatus();
  }));
  return frequencies;
}

// Llama 3's scaling: long wavelengths are stretched by `factor`, short ones kept, those
// between interpolated.
absl::Status ScaleLlama3(const JsonObject& rope, int64_t original_context, std::vector<float>& frequencies) {
  GH_ASSIGN_OR_RETURN(const double factor, rope.Positive("factor", kMaxFactor));
  GH_ASSIGN_OR_RETURN(const double low, rope.Positive("low_freq_factor", kMaxFactor));
  GH_ASSIGN_OR_RETURN(const double high, rope.Positive("high_freq_factor", kMaxFactor));
  if (!(high > low)) return rope.Error("high_freq_factor", "must be above low_freq_factor");
  const float old_context = static_cast<float>(original_context);
  const float longest = static_cast<float>(static_cast<double>(original_context) / low);
  const float shortest = static_cast<float>(static_cast<double>(original_context) / high);
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      frequency /= static_cast<float>(factor);
      continue;
    }
    const float smooth = (old_context / wavelength - static_cast<float>(low)) / static_cast<float>(high - low);
    frequency = (1.0f - smooth) * frequency / static_cast<float>(factor) + smooth * frequency;
  }
  return absl::OkStatus();
}

absl::Status Scale(const JsonObject& config, const JsonObject& rope, int context, std::vector<float>& frequencies) {
  GH_ASSIGN_OR_RETURN(const std::string old_type, rope.StringOr("type", "default"));
  GH_ASSIGN_OR_RETURN(const std::string type, rope.StringOr("rope_type", old_type));
  if (type == "default") return CheckKeys(rope, type, {});
  if (type == "linear") {
    GH_RETURN_IF_ERROR(CheckKeys(rope, type, {"factor"}));
    GH_ASSIGN_OR_RETURN(const double factor, rope.Positive("factor", kMaxFactor));
    for (float& frequency : frequencies) frequency /= static_cast<float>(factor);
    return absl::OkStatus();
  }
  if (type == "llama3") {
    GH_RETURN_IF_ERROR(CheckKeys(rope, type, {"factor", "low_freq_factor", "high_freq_factor"}));
    constexpr std::string_view kOriginal = "original_max_position_embeddings";
    const JsonObject& holder = config.Has(kOriginal) ? config : rope;
    GH_ASSIGN_OR_RETURN(const int64_t original, holder.IntOr(kOriginal, 1, kMaxContext, context));
    return ScaleLlama3(rope, original, frequencies);
  }
  return rope.Error("rope_type", StrCat("\"", type, "\" is not supported (default, linear and llama3 are)"));
}

}  // namespace

absl::StatusOr<RotaryFrequencies> ReadRotary(const JsonObject& config, Architecture architecture, int head_dim,
                                             int context) {
  const bool neox = architecture == Architecture::kGptNeoX;
  GH_ASSIGN_OR_RETURN(const JsonObject rope, RopeObject(config));
  GH_ASSIGN_OR_RETURN(const double old_theta,
                      config.PositiveOr(neox ? "rotary_emb_base" : "rope_theta", kMaxTheta, 10000.0));
  GH_ASSIGN_OR_RETURN(const double theta, rope.PositiveOr("rope_theta", kMaxTheta, old_theta));
  GH_ASSIGN_OR_RETURN(const double old_part,
                      config.PositiveOr(neox ? "rotary_pct" : "partial_rotary_factor", 1.0, neox ? 0.25 : 1.0));
  GH_ASSIGN_OR_RETURN(const double part, rope.PositiveOr("partial_rotary_factor", 1.0, old_part));
  if (!neox && part != 1.0) return config.Error("partial_rotary_factor", "other than 1 is not supported for llama");

  const int dims = static_cast<int>(head_dim * part);
  RotaryFrequencies rotary;
  // An odd number still has its last frequency, whose pair takes one more dimension.
  rotary.dims = dims + dims % 2;
  if (rotary.dims > head_dim) {
    return config.Error("head_dim", StrCat("of ", head_dim, " is odd, and rotary embedding turns all of it"));
  }
  GH_ASSIGN_OR_RETURN(rotary.inv_freq, BaseFrequencies(theta, dims));
  GH_RETURN_IF_ERROR(Scale(config, rope, context, rotary.inv_freq));
  return rotary;
}

}  // namespace gatehouse
