#include "server/serving/calibrate_operation.h"

#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// Share of the progress that reading the corpus makes up.
constexpr double kReadingShare = 0.05;

absl::Status CheckCount(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", must be in [", least, ", ", most, "]"));
}

// Where a text of more than `from` bytes can be cut without changing its tokens: after a
// line's end that has a visible character on either side.  The text's end if nowhere.
size_t NextCut(std::string_view text, size_t from) {
  for (size_t end = text.find('\n', from); end != std::string_view::npos; end = text.find('\n', end + 1)) {
    if (end > 0 && end + 1 < text.size() && absl::ascii_isgraph(text[end - 1]) && absl::ascii_isalnum(text[end + 1])) {
      return end + 1;
    }
  }
  return text.size();
}

absl::StatusOr<std::vector<int32_t>> EncodeCorpus(std::string_view text, const Tokenizer& tokenizer,
                                                  const ProgressFn& progress, const std::atomic<bool>& cancelled) {
  std::vector<int32_t> ids;
  size_t begin = 0;
  while (begin < text.size()) {
    if (cancelled.load()) return absl::CancelledError("cancelled");
    progress(kReadingShare * static_cast<double>(begin) / static_cast<double>(text.size()), "reading the corpus");
    const size_t end = text.size() - begin <= kPieceBytes ? text.size() : NextCut(text, begin + kPieceBytes);
    Tokenizer::EncodeOptions options;
    options.add_special_tokens = begin == 0;
    GH_ASSIGN_OR_RETURN(const std::vector<int32_t> piece, tokenizer.Encode(text.substr(begin, end - begin), options));
    ids.insert(ids.end(), piece.begin(), piece.end());
    begin = end;
  }
  return ids;
}

}  // namespace

absl::Status CheckCalibrateOptions(const CalibrateOptions& options, const ModelInfo& model) {
  constexpr int64_t kMaxTokens = int64_t{1} << 31;
  GH_RETURN_IF_ERROR(CheckCount("fit_tokens", options.fit_tokens, 0, kMaxTokens));
  GH_RETURN_IF_ERROR(CheckCount("gate_tokens", options.gate_tokens, 0, kMaxTokens));
  GH_RETURN_IF_ERROR(CheckCount("select_tokens", options.select_tokens, 0, kMaxTokens));
  GH_RETURN_IF_ERROR(CheckCount("report_tokens", options.report_tokens, 0, kMaxTokens));
  if (options.window_tokens != 0) {
    GH_RETURN_IF_ERROR(CheckCount("window_tokens", options.window_tokens, 2, model.context));
  }
  GH_RETURN_IF_ERROR(CheckCount("sink_positions", options.sink_positions, 0, model.context - 1));
  GH_RETURN_IF_ERROR(CheckCount("max_consensus", options.max_consensus, 1, 64));
  if (!(options.ridge >= 0 && std::isfinite(options.ridge))) {
    return absl::InvalidArgumentError(StrCat("ridge is ", options.ridge, ", must be finite and at least 0"));
  }
  if (!(options.gateable_cost_limit >= 0 && std::isfinite(options.gateable_cost_limit))) {
    return absl::InvalidArgumentError(
        StrCat("gateable_cost_limit is ", options.gateable_cost_limit, ", must be finite and at least 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RunCalibration(const ServedModel& model, const std::string& corpus_path,
                                        const CalibrateOptions& options, bool activate, const ProgressFn& progress,
                                        const std::atomic<bool>& cancelled) {
  GH_ASSIGN_OR_RETURN(const std::string path, model.calibrations->PathFor(options.name));
  std::vector<int32_t> tokens;
  {
    GH_ASSIGN_OR_RETURN(const MappedFile corpus, MappedFile::Open(corpus_path));
    GH_ASSIGN_OR_RETURN(tokens, EncodeCorpus(corpus.bytes(), *model.tokenizer, progress, cancelled));
  }
  const ProgressFn later = [&progress](double fraction, std::string_view stage) {
    progress(kReadingShare + (1 - kReadingShare) * fraction, stage);
  };
  const absl::StatusOr<CalibrationInfo> info = model.engine->Calibrate(options, tokens, path, later, cancelled);
  if (!info.ok()) return info.status();
  GH_RETURN_IF_ERROR(model.calibrations->Adopt(options.name, activate));
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return absl::InternalError(StrCat("cannot read the size of ", path, ": ", error.message()));
  return bytes;
}

}  // namespace gatehouse
