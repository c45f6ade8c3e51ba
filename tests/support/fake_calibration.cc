#include <chrono>
#include <string>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "tests/support/fake_engine.h"

namespace gatehouse::testing {
namespace {

class FakeCalibration final : public Calibration {
 public:
  explicit FakeCalibration(CalibrationInfo info) : Calibration(std::move(info)) {}
};

}  // namespace

CalibrationInfo FakeCalibrationInfo(const std::string& name, const FakeEngineOptions& options,
                                    const std::string& created) {
  CalibrationInfo info;
  info.name = name;
  info.fingerprint = StrCat("sha256:", name);
  info.model_fingerprint = options.fingerprint;
  info.created = created;
  info.corpus = "fake";
  info.sink_positions = 1;
  info.dtype = "float32";
  info.layers.resize(options.layers);
  for (LayerCalibration& layer : info.layers) {
    layer.gateable = true;
    layer.surrogate_r2 = 0.5;
    layer.consensus = {{.neuron = 3}, {.neuron = 5}, {.neuron = 7}};
    layer.exception = {{.neuron = 9}};
    layer.ladder_neurons = &layer == &info.layers.back() ? 0 : 8;
    layer.neuron_means = &layer != &info.layers.back();
  }
  info.ingredients = {"sequential", "ladders"};
  for (const double budget : {0.01, 0.05}) {
    OperatingPoint& point = info.operating_points.emplace_back();
    point.name = budget < 0.02 ? "1%" : "5%";
    point.budget = budget;
    point.cost = 0.9 * budget;
    point.cost_low = 0.5 * budget;
    point.cost_high = 1.2 * budget;
    point.work_saved = 10 * budget;
    point.linear_fraction = 5 * budget;
    point.ladder_fraction = 3 * budget;
    for (const LayerCalibration& layer : info.layers) {
      point.layers.push_back({0.7f, layer.ladder_neurons > 0 ? 0.4f : 1.0f});
    }
  }
  return info;
}

absl::Status WriteFakeCalibration(const std::string& path, const CalibrationInfo& info) {
  const nlohmann::json json = {{"name", info.name},
                               {"model_fingerprint", info.model_fingerprint},
                               {"created", info.created},
                               {"sink_positions", info.sink_positions}};
  return WriteFileAtomically(path, json.dump());
}

absl::StatusOr<CalibrationInfo> FakeEngine::ReadCalibrationInfo(const std::string& path) {
  GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("name")) return absl::InvalidArgumentError("a damaged calibration");
  CalibrationInfo info = FakeCalibrationInfo(json["name"], options_, json["created"]);
  info.model_fingerprint = json["model_fingerprint"];
  info.sink_positions = json["sink_positions"];
  return info;
}

absl::StatusOr<std::shared_ptr<const Calibration>> FakeEngine::LoadCalibration(const std::string& path) {
  GH_ASSIGN_OR_RETURN(CalibrationInfo info, ReadCalibrationInfo(path));
  if (info.model_fingerprint != options_.fingerprint) {
    return absl::FailedPreconditionError("a calibration of another model");
  }
  const std::lock_guard lock(mutex_);
  ++loaded_;
  return std::make_shared<FakeCalibration>(std::move(info));
}

absl::Status FakeEngine::PretendToWork(std::span<const int32_t> tokens, const ProgressFn& progress,
                                       const std::atomic<bool>& cancelled) {
  constexpr int kStages = 20;
  for (int i = 0; i < kStages; ++i) {
    progress(static_cast<double>(i) / kStages, StrCat("layer ", i, " of ", kStages));
    std::unique_lock lock(mutex_);
    calibrating_ = true;
    calibrated_tokens_.assign(tokens.begin(), tokens.end());
    changed_.notify_all();
    while (calibrations_blocked_ && !cancelled.load()) changed_.wait_for(lock, std::chrono::milliseconds(2));
    if (cancelled.load()) {
      calibrating_ = false;
      return absl::CancelledError("cancelled");
    }
    if (!calibration_error_.ok()) return calibration_error_;
  }
  return absl::OkStatus();
}

absl::StatusOr<CalibrationInfo> FakeEngine::Calibrate(const CalibrateOptions& options, std::span<const int32_t> tokens,
                                                      const std::string& path, const ProgressFn& progress,
                                                      const std::atomic<bool>& cancelled) {
  {
    const std::lock_guard lock(mutex_);
    calibrate_options_ = options;
  }
  GH_RETURN_IF_ERROR(PretendToWork(tokens, progress, cancelled));
  CalibrationInfo info = FakeCalibrationInfo(options.name, options_, Rfc3339Now());
  info.corpus = options.corpus;
  info.corpus_sha256 = options.corpus_sha256;
  GH_RETURN_IF_ERROR(WriteFakeCalibration(path, info));
  const std::lock_guard lock(mutex_);
  calibrating_ = false;
  return info;
}

absl::StatusOr<ExperimentResult> FakeEngine::RunExperiment(const ExperimentSpec& spec, std::span<const Corpus> corpora,
                                                           const std::string& directory, const ProgressFn& progress,
                                                           const std::atomic<bool>& cancelled) {
  {
    const std::lock_guard lock(mutex_);
    experiment_spec_ = spec;
  }
  if (const auto* const training = std::get_if<TrainingMethod>(&spec.method); training != nullptr) {
    const std::string path = directory + "/checkpoint";
    const std::string before = ReadFile(path).value_or("");
    GH_RETURN_IF_ERROR(WriteFileAtomically(path, before + "a step\n"));
    if (training->save_model) {
      GH_RETURN_IF_ERROR(MakeDirectories(directory + "/model"));
      GH_RETURN_IF_ERROR(WriteFileAtomically(directory + "/model/config.json", "{}"));
    }
  }
  GH_RETURN_IF_ERROR(PretendToWork(corpora.front().tokens, progress, cancelled));
  const std::lock_guard lock(mutex_);
  calibrating_ = false;
  if (experiment_result_.has_value()) return *experiment_result_;
  ExperimentResult result;
  result.report.kind = ExperimentKind(spec.method);
  result.report.title = "A fake experiment";
  result.report.model_fingerprint = options_.fingerprint;
  result.report.created = Rfc3339Now();
  std::vector<std::string> labels;
  std::vector<double> tokens;
  for (const Corpus& corpus : corpora) {
    result.report.corpora.push_back({corpus.label, corpus.sha256, static_cast<int64_t>(corpus.tokens.size())});
    labels.push_back(corpus.label);
    tokens.push_back(static_cast<double>(corpus.tokens.size()));
  }
  result.report.tables.push_back(
      {"corpora", "Corpora", "", {{"label", "label", labels}, {"tokens", "tokens read", tokens}}});
  result.arrays.push_back({"tokens", {static_cast<int64_t>(tokens.size())}, tokens});
  return result;
}

void FakeEngine::SetExperimentResult(ExperimentResult result) {
  const std::lock_guard lock(mutex_);
  experiment_result_ = std::move(result);
}

void FakeEngine::BlockCalibrations() {
  const std::lock_guard lock(mutex_);
  calibrations_blocked_ = true;
}

void FakeEngine::ReleaseCalibrations() {
  const std::lock_guard lock(mutex_);
  calibrations_blocked_ = false;
  changed_.notify_all();
}

void FakeEngine::WaitUntilCalibrating() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return calibrating_; });
}

void FakeEngine::FailCalibrations(absl::Status status) {
  const std::lock_guard lock(mutex_);
  calibration_error_ = std::move(status);
}

int FakeEngine::calibrations_loaded() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

std::vector<int32_t> FakeEngine::calibrated_tokens() const {
  const std::lock_guard lock(mutex_);
  return calibrated_tokens_;
}

CalibrateOptions FakeEngine::calibrate_options() const {
  const std::lock_guard lock(mutex_);
  return calibrate_options_;
}

ExperimentSpec FakeEngine::experiment_spec() const {
  const std::lock_guard lock(mutex_);
  return experiment_spec_;
}

}  // namespace gatehouse::testing
