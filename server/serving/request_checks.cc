#include "server/serving/request_checks.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/base/error_reason.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/utf8_stream.h"

namespace gatehouse {
namespace {

constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 256;
constexpr size_t kMaxStopTokens = 64;

}  // namespace

absl::StatusOr<std::vector<int32_t>> ResolveInput(const InputText& input, const ServedModel& model,
                                                  std::string_view field) {
  std::vector<int32_t> ids;
  if (input.text.has_value()) {
    if (input.text->empty())
      return WithReason(absl::InvalidArgumentError(StrCat(field, " is empty")), reason::kEmptyInput);
    if (!IsUtf8(*input.text))
      return WithReason(absl::InvalidArgumentError(StrCat(field, " is not UTF-8")), reason::kInvalidUtf8);
    Tokenizer::EncodeOptions options;
    options.plain_text = input.plain_text;
    auto encoded = model.tokenizer->Encode(*input.text, options);
    if (!encoded.ok()) return Annotate(encoded.status(), field);
    ids = *std::move(encoded);
  } else {
    ids = input.token_ids;
  }
  if (ids.empty()) return WithReason(absl::InvalidArgumentError(StrCat(field, " has no tokens")), reason::kEmptyInput);
  GH_RETURN_IF_ERROR(CheckTokenIds(ids, model.engine->info().vocab_size, field));
  return ids;
}

absl::StatusOr<RoutingPolicy> ResolveGating(const GatingChoice& choice, const RecordRequest& records,
                                            const ServedModel& model, std::span<const Intervention> interventions) {
  const bool needed = choice.request.mode != GatingMode::kFull || records.nonlinearity || records.consensus ||
                      records.gate || InterventionPlan::NeedCalibration(interventions);
  std::shared_ptr<const Calibration> calibration;
  if (needed || !choice.calibration.empty()) {
    GH_ASSIGN_OR_RETURN(calibration, model.calibrations->Get(choice.calibration));
  }
  return RoutingPolicy::Create(choice.request, model.engine->info(), std::move(calibration));
}

int SequenceCapacity(const Engine& engine) {
  const KvUsage kv = engine.kv_usage();
  const int64_t memory = kv.pages_total * kv.page_tokens;
  return static_cast<int>(std::min<int64_t>(engine.info().context, memory));
}

absl::Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, std::string_view field) {
  for (const int32_t id : ids) {
    if (!(id >= 0 && id < vocab_size)) {
      return WithReason(
          absl::InvalidArgumentError(StrCat(field, " holds token id ", id, ", must be in [0, ", vocab_size, ")")),
          reason::kTokenOutOfRange);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTopLogprobs(int top_logprobs) {
  if (top_logprobs >= 0 && top_logprobs <= kMaxTopLogprobs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("top_logprobs is ", top_logprobs, ", must be in [0, ", kMaxTopLogprobs, "]"));
}

absl::Status CheckStopConditions(const StopConditions& stop, int vocab_size) {
  if (stop.strings.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(
        StrCat("stop.strings has ", stop.strings.size(), " entries, at most ", kMaxStopStrings, " are allowed"));
  }
  for (const std::string& text : stop.strings) {
    if (!(!text.empty() && text.size() <= kMaxStopStringBytes)) {
      return absl::InvalidArgumentError(
          StrCat("stop.strings has a string of ", text.size(), " bytes, must be in [1, ", kMaxStopStringBytes, "]"));
    }
    if (!IsUtf8(text))
      return WithReason(absl::InvalidArgumentError("stop.strings has a string that is not UTF-8"),
                        reason::kInvalidUtf8);
  }
  if (stop.token_ids.size() > kMaxStopTokens) {
    return absl::InvalidArgumentError(
        StrCat("stop.token_ids has ", stop.token_ids.size(), " entries, at most ", kMaxStopTokens, " are allowed"));
  }
  return CheckTokenIds(stop.token_ids, vocab_size, "stop.token_ids");
}

}  // namespace gatehouse
