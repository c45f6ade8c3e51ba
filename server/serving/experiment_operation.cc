#include <filesystem>
#include <system_error>
#include <utility>

#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/npz.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/corpus_tokens.h"
#include "server/serving/experiment_checks.h"
#include "server/serving/operation_work.h"
#include "server/serving/report_json.h"

namespace gatehouse {
namespace {

namespace fs = std::filesystem;

// The arrays of a result, and every column of numbers in its tables as TABLE.COLUMN.
std::vector<NpzArray> ArraysOf(const ExperimentResult& result) {
  std::vector<NpzArray> arrays;
  for (const ReportArray& array : result.arrays) {
    NpzArray& view = arrays.emplace_back(NpzArray{array.name, array.shape, {}});
    std::visit([&](const auto& values) { view.values = std::span(values); }, array.values);
  }
  for (const ReportTable& table : result.report.tables) {
    for (const ReportColumn& column : table.columns) {
      const auto* const numbers = std::get_if<std::vector<double>>(&column.cells);
      if (numbers == nullptr) continue;
      arrays.push_back(
          {StrCat(table.name, ".", column.name), {static_cast<int64_t>(numbers->size())}, std::span(*numbers)});
    }
  }
  return arrays;
}

absl::Status WriteInFolder(const std::string& folder, std::string_view file, std::string_view bytes) {
  const absl::Status status = WriteFileAtomically(StrCat(folder, "/", file), bytes);
  return absl::IsResourceExhausted(status) ? WithReason(status, reason::kDiskFull) : status;
}

// Copies what an earlier operation kept to be resumed; its report is not part of that.
absl::Status CopyCheckpoint(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!fs::is_directory(from, error)) {
    return WithReason(absl::NotFoundError("the files of the operation to be resumed have been deleted"),
                      reason::kNoResult);
  }
  fs::copy(from, to, fs::copy_options::recursive, error);
  if (error) {
    const std::string message = StrCat("cannot copy the files of the operation to be resumed: ", error.message());
    if (error == std::errc::no_space_on_device) {
      return WithReason(absl::ResourceExhaustedError(message), reason::kDiskFull);
    }
    return absl::InternalError(message);
  }
  fs::remove(StrCat(to, "/", kReportFile), error);
  fs::remove(StrCat(to, "/", kArraysFile), error);
  return absl::OkStatus();
}

// Runs a method of the engine on texts.  The folder keeps the report, its arrays, and what
// the method puts there; of a training that was cut short, its checkpoint.
class ExperimentWork final : public OperationWork {
 public:
  ExperimentWork(const ServedModel& model, ExperimentRequest request, std::vector<CorpusStore::Found> corpora,
                 std::string resumed_folder)
      : model_(model),
        request_(std::move(request)),
        corpora_(std::move(corpora)),
        resumed_folder_(std::move(resumed_folder)) {}

  std::string kind() const override { return ExperimentKind(request_.spec.method); }
  std::vector<std::string> needs() const override {
    std::vector<std::string> names = request_.corpora;
    if (!request_.resume.empty()) names.push_back(request_.resume);
    return names;
  }

  absl::StatusOr<Outcome> Run(const Place& place, const ProgressFn& progress,
                              const std::atomic<bool>& cancelled) override {
    GH_RETURN_IF_ERROR(MakeDirectories(place.folder));
    if (!resumed_folder_.empty()) GH_RETURN_IF_ERROR(CopyCheckpoint(resumed_folder_, place.folder));
    GH_ASSIGN_OR_RETURN(const std::vector<Corpus> corpora, ReadCorpora(progress, cancelled));
    ExperimentSpec spec = request_.spec;
    spec.token_text = [tokenizer = model_.tokenizer.get()](int32_t token) {
      return std::string(tokenizer->TokenBytes(token));
    };
    GH_ASSIGN_OR_RETURN(
        ExperimentResult result,
        model_.engine->RunExperiment(spec, corpora, place.folder, PartOf(progress, kReadingShare, 1), cancelled));
    result.report.model = model_.name;
    return Write(result, place.folder);
  }

 private:
  absl::StatusOr<std::vector<Corpus>> ReadCorpora(const ProgressFn& progress,
                                                  const std::atomic<bool>& cancelled) const {
    std::vector<Corpus> corpora;
    const double share = kReadingShare / static_cast<double>(corpora_.size());
    for (const CorpusStore::Found& found : corpora_) {
      const double begin = share * static_cast<double>(corpora.size());
      GH_ASSIGN_OR_RETURN(
          std::vector<int32_t> tokens,
          ReadCorpusTokens(found, *model_.tokenizer, PartOf(progress, begin, begin + share), cancelled));
      corpora.push_back({found.label, found.sha256, std::move(tokens)});
    }
    return corpora;
  }

  // The report last: where it is, all is.
  static absl::StatusOr<Outcome> Write(const ExperimentResult& result, const std::string& folder) {
    const absl::Status sound = CheckReport(result.report);
    if (!sound.ok()) return absl::InternalError(StrCat("the experiment's report is malformed: ", Message(sound)));
    const absl::StatusOr<std::string> arrays = EncodeNpz(ArraysOf(result));
    if (!arrays.ok()) return absl::InternalError(StrCat("the experiment's arrays: ", Message(arrays.status())));
    GH_RETURN_IF_ERROR(WriteInFolder(folder, kArraysFile, *arrays));
    const std::string report = ReportToJson(result.report);
    GH_RETURN_IF_ERROR(WriteInFolder(folder, kReportFile, report));
    return Outcome{std::string(kReportFile), report.size()};
  }

  const ServedModel& model_;
  const ExperimentRequest request_;
  const std::vector<CorpusStore::Found> corpora_;
  const std::string resumed_folder_;  // empty: none
};

// The folder of the operation to be resumed.
absl::StatusOr<std::string> ResumedFolder(const WorkContext& context, const ExperimentRequest& request) {
  const absl::StatusOr<OperationStatus> earlier = context.find(request.resume);
  if (!earlier.ok()) return Annotate(earlier.status(), "resume");
  const std::string kind = ExperimentKind(request.spec.method);
  if (earlier->kind != kind || earlier->model != context.model.name) {
    return absl::InvalidArgumentError(StrCat("resume names a ", earlier->kind, " of ", earlier->model, ", must be a ",
                                             kind, " of ", context.model.name));
  }
  if (!earlier->done()) return absl::FailedPreconditionError("the operation to be resumed has not ended");
  if (earlier->files.empty()) {
    return WithReason(absl::FailedPreconditionError("the operation to be resumed left nothing"), reason::kNoResult);
  }
  GH_ASSIGN_OR_RETURN(const OperationName name, OperationName::Parse(earlier->name));
  return context.results.FolderOf(name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OperationWork>> MakeExperiment(const WorkContext& context, ExperimentRequest request) {
  GH_RETURN_IF_ERROR(CheckExperiment(request, context.model.engine->info()));
  std::vector<CorpusStore::Found> corpora;
  for (const std::string& name : request.corpora) {
    GH_ASSIGN_OR_RETURN(CorpusStore::Found found, context.corpora.Find(name));
    corpora.push_back(std::move(found));
  }
  std::string resumed_folder;
  if (!request.resume.empty()) {
    GH_ASSIGN_OR_RETURN(resumed_folder, ResumedFolder(context, request));
  }
  return std::make_unique<ExperimentWork>(context.model, std::move(request), std::move(corpora),
                                          std::move(resumed_folder));
}

}  // namespace gatehouse
