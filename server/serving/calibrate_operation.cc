#include <filesystem>
#include <system_error>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serving/corpus_tokens.h"
#include "server/serving/operation_work.h"
#include "server/serving/option_checks.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxBudgets = 16;

absl::Status CheckBudget(const BudgetOptions& budget) {
  if (budget.budgets.size() > kMaxBudgets) {
    return absl::InvalidArgumentError(
        StrCat("budget.budgets has ", budget.budgets.size(), " entries, at most ", kMaxBudgets, " are allowed"));
  }
  for (size_t i = 0; i < budget.budgets.size(); ++i) {
    GH_RETURN_IF_ERROR(CheckAbove("budget.budgets", budget.budgets[i], 0, 10));
    for (size_t j = 0; j < i; ++j) {
      if (budget.budgets[i] != budget.budgets[j]) continue;
      return absl::InvalidArgumentError(
          StrCat("budget.budgets has ", budget.budgets[i], " twice, must have each once"));
    }
  }
  GH_RETURN_IF_ERROR(CheckProperShare("budget.ladder_share", budget.ladder_share));
  GH_RETURN_IF_ERROR(CheckCount("budget.tune_steps", budget.tune_steps, 0, 100'000));
  GH_RETURN_IF_ERROR(CheckCount("budget.tune_sequences", budget.tune_sequences, 1, 256));
  return CheckProperShare("budget.tune_work_saved", budget.tune_work_saved);
}

absl::Status CheckOptions(const CalibrateOptions& options, const ModelInfo& model) {
  GH_RETURN_IF_ERROR(CheckSplitOptions(options, model));
  GH_RETURN_IF_ERROR(CheckAbove("ridge", options.ridge, 0, 1e12));
  GH_RETURN_IF_ERROR(CheckCount("max_consensus", options.max_consensus, 1, 64));
  GH_RETURN_IF_ERROR(CheckNumber("gateable_cost_limit", options.gateable_cost_limit, 0));
  return CheckBudget(options.budget);
}

// Calibrates the model on a text, and takes the result up in its calibration store, as the
// active one where asked.  Nothing is written where it does not succeed.
class CalibrateWork final : public OperationWork {
 public:
  CalibrateWork(const ServedModel& model, CalibrateSpec spec, CorpusStore::Found corpus)
      : model_(model), spec_(std::move(spec)), corpus_(std::move(corpus)) {}

  std::string kind() const override { return std::string(kCalibrateKind); }
  std::string claim() const override {
    return spec_.options.name.empty() ? "" : StrCat("a calibration named ", spec_.options.name, " of ", model_.name);
  }
  std::vector<std::string> needs() const override { return {spec_.corpus}; }

  absl::StatusOr<Outcome> Run(const Place& place, const ProgressFn& progress,
                              const std::atomic<bool>& cancelled) override {
    CalibrateOptions options = spec_.options;
    if (options.name.empty()) options.name = place.id;
    GH_ASSIGN_OR_RETURN(const std::string path, model_.calibrations->PathFor(options.name));
    GH_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                        ReadCorpusTokens(corpus_, *model_.tokenizer, PartOf(progress, 0, kReadingShare), cancelled));
    absl::Status status =
        model_.engine->Calibrate(options, tokens, path, PartOf(progress, kReadingShare, 1), cancelled).status();
    if (status.ok()) status = model_.calibrations->Adopt(options.name, spec_.activate);
    std::error_code error;
    if (!status.ok()) {
      std::filesystem::remove(path, error);
      return status;
    }
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) return absl::InternalError(StrCat("cannot read the size of ", path, ": ", error.message()));
    return Outcome{options.name, bytes};
  }

 private:
  const ServedModel& model_;
  const CalibrateSpec spec_;
  const CorpusStore::Found corpus_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OperationWork>> MakeCalibration(const WorkContext& context, CalibrateSpec spec) {
  GH_RETURN_IF_ERROR(CheckOptions(spec.options, context.model.engine->info()));
  if (!spec.options.name.empty()) {
    GH_RETURN_IF_ERROR(context.model.calibrations->PathFor(spec.options.name).status());
  }
  GH_ASSIGN_OR_RETURN(CorpusStore::Found corpus, context.corpora.Find(spec.corpus));
  if (spec.options.corpus.empty()) spec.options.corpus = corpus.label;
  spec.options.corpus_sha256 = corpus.sha256;
  return std::make_unique<CalibrateWork>(context.model, std::move(spec), std::move(corpus));
}

}  // namespace gatehouse
