// Experiments as operations: what they leave, how a training goes on, what is refused.

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "server/base/error_reason.h"
#include "server/base/strings.h"
#include "tests/serving/operations_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Experiments : public OperationsTest {
 protected:
  static ExperimentRequest Request(std::vector<std::string> corpora, ExperimentMethod method = {}) {
    ExperimentRequest request;
    request.corpora = std::move(corpora);
    request.spec.method = std::move(method);
    return request;
  }
  static std::string UploadText(OperationManager& manager, const std::string& text = "some text") {
    return Upload(manager, {text}, text)->name;
  }
  static std::string MustStartExperiment(OperationManager& manager, const ExperimentRequest& request) {
    const auto status = manager.Start("m", request);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(OperationStatus{}).name;
  }
  std::string FolderOf(const std::string& name) const {
    return state_ + "/results" + name.substr(std::string("operations").size());
  }
  // A training that was cancelled while it ran.
  std::string CancelledTraining(OperationManager& manager, const std::string& corpus) {
    engine_->BlockCalibrations();
    const std::string name = MustStartExperiment(manager, Request({corpus}, TrainingMethod()));
    engine_->WaitUntilCalibrating();
    EXPECT_TRUE(manager.Cancel(name).ok());
    EXPECT_EQ(RunToEnd(manager, name).state, OperationState::kCancelled);
    engine_->ReleaseCalibrations();
    return name;
  }
};

TEST_F(Experiments, LeaveAReportAndItsArraysInAFolderOfTheirOwn) {
  const auto manager = Open();
  const std::string first = UploadText(*manager, "one"), second = UploadText(*manager, "second");
  ExperimentRequest request = Request({second, first}, NoFlyMethod());
  request.spec.options.layers = {2, 0};
  request.spec.options.seed = 7;
  const std::string name = MustStartExperiment(*manager, request);
  const OperationStatus status = RunToEnd(*manager, name);
  ASSERT_EQ(status.state, OperationState::kSucceeded) << status.error;
  EXPECT_EQ(status.kind, "no_fly");
  EXPECT_EQ(status.result, "report.json");
  EXPECT_THAT(status.files, ElementsAre("arrays.npz", "report.json"));
  EXPECT_EQ(*manager->ResultPath(name), FolderOf(name) + "/report.json");
  EXPECT_EQ(status.result_bytes, std::filesystem::file_size(*manager->ResultPath(name)));
  EXPECT_EQ(*manager->ResultPath(name, "arrays.npz"), FolderOf(name) + "/arrays.npz");
  EXPECT_THAT(engine_->experiment_spec().options.layers, ElementsAre(2, 0));
  EXPECT_EQ(engine_->experiment_spec().options.seed, 7u);

  const auto report = manager->ReadReport(name);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->model, "m");
  ASSERT_EQ(report->corpora.size(), 2u);  // in the order they were named
  EXPECT_EQ(report->corpora[0].label, "second");
  EXPECT_EQ("corpora/" + report->corpora[0].sha256, second);
  EXPECT_EQ(report->corpora[1].tokens, 3);
  const std::string arrays = *ReadFile(FolderOf(name) + "/arrays.npz");
  EXPECT_THAT(arrays, HasSubstr("tokens.npy"));
  EXPECT_THAT(arrays, HasSubstr("corpora.tokens.npy"));
}

TEST_F(Experiments, CanBeReadAfterARestartAndByOtherReplicas) {
  std::string name;
  {
    const auto manager = Open();
    name = MustStartExperiment(*manager, Request({UploadText(*manager)}));
    EXPECT_EQ(RunToEnd(*manager, name).state, OperationState::kSucceeded);
  }
  const auto manager = Open(), other = Open(Options("r2"));
  EXPECT_THAT(manager->Get(name)->files, ElementsAre("arrays.npz", "report.json"));
  EXPECT_EQ(manager->ReadReport(name)->title, "A fake experiment");
  EXPECT_EQ(other->ReadReport(name)->title, "A fake experiment");
  EXPECT_TRUE(other->ResultPath(name, "arrays.npz").ok());
}

TEST_F(Experiments, GiveOutOnlyTheFilesTheyLeft) {
  const auto manager = Open();
  const std::string name = MustStartExperiment(*manager, Request({UploadText(*manager)}));
  RunToEnd(*manager, name);
  std::ofstream(FolderOf(name) + "/secret") << "put there since";
  for (const char* file : {"secret", "../secret", "../../../operations/r1/lock", "/etc/passwd", "report.json/", "."}) {
    const absl::Status status = manager->ResultPath(name, file).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("it left arrays.npz, report.json"))) << file;
    EXPECT_EQ(ReasonOf(status), "NO_RESULT");
  }
  // Nor by what a state file claims.
  const std::string path = state_ + "/operations/r2/20260101T000000.000.json";
  ASSERT_TRUE(MakeDirectories(state_ + "/operations/r2").ok());
  std::ofstream(path) << R"({"kind":"no_fly","model":"m","state":"succeeded","result":"../../../corpora/x",
                             "files":["../../../corpora/x"]})";
  EXPECT_THAT(manager->ResultPath("operations/r2/20260101T000000.000"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  std::filesystem::remove(FolderOf(name) + "/arrays.npz");
  EXPECT_THAT(manager->ResultPath(name, "arrays.npz"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("deleted")));
}

TEST_F(Experiments, HaveAReportOnlyOnceTheySucceeded) {
  const auto manager = Open();
  const std::string corpus = UploadText(*manager);
  engine_->BlockCalibrations();
  const std::string name = MustStartExperiment(*manager, Request({corpus}));
  engine_->WaitUntilCalibrating();
  EXPECT_THAT(manager->ReadReport(name), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not ended yet")));
  manager->Cancel(name).status().IgnoreError();
  EXPECT_EQ(RunToEnd(*manager, name).state, OperationState::kCancelled);
  EXPECT_THAT(manager->ReadReport(name),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without a report")));
  EXPECT_THAT(manager->Get(name)->files, IsEmpty());
  engine_->ReleaseCalibrations();
  const std::string calibration = MustStart(*manager).name;
  RunToEnd(*manager, calibration);
  EXPECT_THAT(manager->ReadReport(calibration),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no report")));
  EXPECT_EQ(manager->Get(calibration)->files.size(), 1u);
  EXPECT_TRUE(manager->ResultPath(calibration, manager->Get(calibration)->files[0]).ok());
}

TEST_F(Experiments, SayThatAReportIsDamaged) {
  const auto manager = Open();
  const std::string name = MustStartExperiment(*manager, Request({UploadText(*manager)}));
  RunToEnd(*manager, name);
  std::ofstream(FolderOf(name) + "/report.json") << R"({"tables":[{"name":"a","columns":[{"name":"x","values":[1]},)";
  EXPECT_THAT(manager->ReadReport(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
}

TEST_F(Experiments, FailWhereTheReportOrItsArraysAreMalformedAndWriteNothing) {
  const auto manager = Open();
  ExperimentResult result;
  result.report.tables = {{"t", "", "", {{"x", "", std::vector<double>{1, 2}}, {"y", "", std::vector<double>{1}}}}};
  engine_->SetExperimentResult(result);
  const std::string corpus = UploadText(*manager);
  OperationStatus status = RunToEnd(*manager, MustStartExperiment(*manager, Request({corpus})));
  EXPECT_EQ(status.state, OperationState::kFailed);
  EXPECT_THAT(status.error, StatusIs(absl::StatusCode::kInternal, HasSubstr("column t.y has 1 rows, others have 2")));
  EXPECT_THAT(status.files, IsEmpty());
  result.report.tables.clear();
  result.arrays = {{"a", {2}, std::vector<float>{1, 2}}, {"a", {1}, std::vector<float>{1}}};
  engine_->SetExperimentResult(result);
  status = RunToEnd(*manager, MustStartExperiment(*manager, Request({corpus})));
  EXPECT_THAT(status.error, StatusIs(absl::StatusCode::kInternal, HasSubstr("two arrays are named 'a'")));
  EXPECT_THAT(status.files, IsEmpty());
}

TEST_F(Experiments, OfTrainingKeepTheirCheckpointWhenTheyAreCutShortAndGoOnFromIt) {
  const auto manager = Open();
  const std::string corpus = UploadText(*manager);
  const std::string cancelled = CancelledTraining(*manager, corpus);
  EXPECT_THAT(manager->Get(cancelled)->files, ElementsAre("checkpoint"));
  EXPECT_TRUE(manager->ResultPath(cancelled, "checkpoint").ok());

  TrainingMethod method;
  method.save_model = true;
  ExperimentRequest request = Request({corpus}, method);
  request.resume = cancelled;
  const OperationStatus status = RunToEnd(*manager, MustStartExperiment(*manager, request));
  ASSERT_EQ(status.state, OperationState::kSucceeded) << status.error;
  EXPECT_THAT(status.files, ElementsAre("arrays.npz", "checkpoint", "model/config.json", "report.json"));
  EXPECT_EQ(*ReadFile(*manager->ResultPath(status.name, "checkpoint")), "a step\na step\n");
  EXPECT_TRUE(manager->ResultPath(status.name, "model/config.json").ok());
  // The earlier one keeps its own.
  EXPECT_EQ(*ReadFile(FolderOf(cancelled) + "/checkpoint"), "a step\n");
}

TEST_F(Experiments, GoOnAfterACrash) {
  std::string name;
  {
    const auto manager = Open();
    name = CancelledTraining(*manager, UploadText(*manager));
  }
  // As the crash of a server leaves it, with a file half-written.
  const std::string state = state_ + "/operations/r1/" + name.substr(name.rfind('/') + 1) + ".json";
  std::string text = *ReadFile(state);
  text.replace(text.find("cancelled"), std::string("cancelled").size(), "running");
  std::ofstream(state) << text;
  std::ofstream(FolderOf(name) + "/checkpoint.tmp-1-2") << "half";
  const auto manager = Open();
  EXPECT_EQ(manager->Get(name)->state, OperationState::kInterrupted);
  EXPECT_THAT(manager->Get(name)->files, ElementsAre("checkpoint"));
  ExperimentRequest request = Request({UploadText(*manager)}, TrainingMethod());
  request.resume = name;
  EXPECT_EQ(RunToEnd(*manager, MustStartExperiment(*manager, request)).state, OperationState::kSucceeded);
}

TEST_F(Experiments, ResumeOnlyWhatCanBeResumed) {
  const auto manager = Open();
  const std::string corpus = UploadText(*manager);
  const std::string cancelled = CancelledTraining(*manager, corpus);
  const auto refused = [&](const std::string& resume, ExperimentMethod method) {
    ExperimentRequest request = Request({corpus}, std::move(method));
    request.resume = resume;
    return manager->Start("m", request).status();
  };
  EXPECT_THAT(refused(cancelled, RoutabilityMethod()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("routability keeps no checkpoint")));
  TrainingMethod two_phase;
  two_phase.schedule = TrainingSchedule::kTwoPhase;
  EXPECT_THAT(refused(cancelled, two_phase),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a progressive of m, must be a two_phase of m")));
  EXPECT_THAT(refused("nonsense", TrainingMethod()), StatusIs(absl::StatusCode::kNotFound, HasSubstr("resume")));
  EXPECT_THAT(refused("operations/r2/x", TrainingMethod()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replica r2")));
  engine_->BlockCalibrations();
  const std::string running = MustStartExperiment(*manager, Request({corpus}, TrainingMethod()));
  engine_->WaitUntilCalibrating();
  EXPECT_THAT(refused(running, TrainingMethod()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has not ended")));
  const std::string waiting = MustStartExperiment(*manager, Request({corpus}, TrainingMethod()));
  EXPECT_TRUE(manager->Cancel(waiting).ok());
  EXPECT_THAT(refused(waiting, TrainingMethod()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("left nothing")));
}

TEST_F(Experiments, TakeTheirFolderWithThemWhenTheyArePruned) {
  OperationsOptions options = Options();
  options.keep_operations = 1;
  std::string old, resumed;
  {
    const auto manager = Open(options);
    const std::string corpus = UploadText(*manager);
    old = CancelledTraining(*manager, corpus);
    EXPECT_TRUE(std::filesystem::exists(FolderOf(old)));
    ExperimentRequest request = Request({corpus}, TrainingMethod());
    request.resume = old;
    resumed = MustStartExperiment(*manager, request);
    EXPECT_EQ(RunToEnd(*manager, resumed).state, OperationState::kSucceeded);
  }
  EXPECT_FALSE(std::filesystem::exists(FolderOf(old)));
  EXPECT_TRUE(std::filesystem::exists(FolderOf(resumed)));
  // What a stop in the middle of it left.
  ASSERT_TRUE(MakeDirectories(FolderOf("operations/r1/orphan")).ok());
  ASSERT_TRUE(MakeDirectories(FolderOf("operations/r2/theirs")).ok());
  const auto manager = Open(options);
  EXPECT_FALSE(std::filesystem::exists(FolderOf("operations/r1/orphan")));
  EXPECT_TRUE(std::filesystem::exists(FolderOf("operations/r2/theirs")));
  EXPECT_TRUE(manager->ReadReport(resumed).ok());
}

TEST_F(Experiments, AreCheckedBeforeTheyStart) {
  const auto manager = Open();
  const std::string corpus = UploadText(*manager), other = UploadText(*manager, "other");
  const auto invalid = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  const auto with_method = [&](ExperimentMethod method) {
    return manager->Start("m", Request({corpus, other}, std::move(method))).status();
  };
  const auto with_options = [&](auto change) {
    ExperimentRequest request = Request({corpus});
    change(request.spec.options);
    return manager->Start("m", request).status();
  };
  const auto with_training = [&](auto change) {
    TrainingMethod method;
    change(method);
    return with_method(method);
  };
  EXPECT_THAT(manager->Start("none", Request({corpus})), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(manager->Start("m", Request({})), invalid("must have 1 to 16"));
  EXPECT_THAT(manager->Start("m", Request({corpus}, NoFlyMethod())), invalid("no_fly must have 2 to 16"));
  EXPECT_THAT(manager->Start("m", Request({corpus, corpus})), invalid("twice"));
  EXPECT_THAT(manager->Start("m", Request(std::vector<std::string>(17, corpus))), invalid("corpora has 17 entries"));
  EXPECT_THAT(manager->Start("m", Request({"corpora/x"})), invalid("SHA256"));
  EXPECT_THAT(manager->Start("m", Request({"corpora/" + std::string(64, 'a')})),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("upload it first")));

  const absl::Status layer = with_options([](ExperimentOptions& options) { options.layers = {3}; });
  EXPECT_THAT(layer, invalid("layers is 3, must be in [0, 2]"));
  EXPECT_EQ(ReasonOf(layer), "LAYER_OUT_OF_RANGE");
  EXPECT_THAT(with_options([](auto& options) { options.layers = {1, 1}; }), invalid("layers has 1 twice"));
  EXPECT_THAT(with_options([](auto& options) { options.fit_tokens = -1; }), invalid("fit_tokens"));
  EXPECT_THAT(with_options([](auto& options) { options.window_tokens = 1; }), invalid("window_tokens is 1"));
  EXPECT_THAT(with_options([](auto& options) { options.sink_positions = 63; }),
              invalid("sink_positions is 63, must be in [0, 62]"));
  EXPECT_THAT(with_options([](auto& options) { options.ridge = NAN; }), invalid("ridge is nan"));
  EXPECT_THAT(with_options([](auto& options) { options.bootstrap_resamples = 99; }), invalid("[100, 1000000]"));

  EXPECT_THAT(with_method(GateSweepMethod{{0.5, 1.5}, {1}}), invalid("thresholds is 1.5, must be in [0, 1]"));
  EXPECT_THAT(with_method(GateSweepMethod{{NAN}, {1}}), invalid("thresholds is nan"));
  EXPECT_THAT(with_method(GateSweepMethod{{}, {1}}), invalid("thresholds has 0"));
  EXPECT_THAT(with_method(GateSweepMethod{{0.5}, {5}}), invalid("bottlenecks is 5, must be in [1, 4]"));
  EXPECT_THAT(with_method(NoFlyMethod{.least_positive = 2}), invalid("no_fly.least_positive"));
  EXPECT_THAT(with_method(NoFlyMethod{.least_count = 0}), invalid("no_fly.least_count"));
  EXPECT_THAT(with_training([](auto& training) { training.order = {1, 5}; }), invalid("training.order is 5"));
  EXPECT_THAT(with_training([](auto& training) { training.steps_per_layer = 0; }), invalid("training.steps_per_layer"));
  EXPECT_THAT(with_training([](auto& training) { training.batch_sequences = 0; }), invalid("training.batch_sequences"));
  EXPECT_THAT(with_training([](auto& training) { training.learning_rate = INFINITY; }),
              invalid("training.learning_rate"));
  EXPECT_THAT(with_training([](auto& training) { training.gradient_clip = 0; }),
              invalid("training.gradient_clip is 0, must be above 0"));
  EXPECT_THAT(with_training([](auto& training) { training.evaluate_every = 0; }), invalid("training.evaluate_every"));
  ExperimentRequest elsewhere = Request({corpus}, TrainingMethod{.order = {1}});
  elsewhere.spec.options.layers = {0, 2};
  EXPECT_THAT(manager->Start("m", elsewhere).status(),
              invalid("training.order names layer 1, which is not among layers"));
  EXPECT_THAT(manager->List(0, "")->operations, IsEmpty());
}

}  // namespace
}  // namespace gatehouse::testing
