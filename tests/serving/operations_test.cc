#include "server/serving/operations.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "server/base/digest.h"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "tests/serving/operations_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

using Operations = OperationsTest;

TEST_F(Operations, CalibrateAndPutTheResultToUse) {
  const auto manager = Open();
  const auto corpus = Upload(*manager, {"some text"}, "my label");
  const auto started = manager->Start("m", Spec(corpus->name, "mine"));
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(started->name, MatchesRegex("operations/r1/[0-9T.]+"));
  EXPECT_EQ(started->kind, "calibrate");
  EXPECT_EQ(started->model, "m");
  EXPECT_FALSE(started->done());
  const OperationStatus status = RunToEnd(*manager, started->name);
  EXPECT_EQ(status.state, OperationState::kSucceeded) << status.error;
  EXPECT_EQ(status.progress, 1);
  EXPECT_EQ(status.result, "mine");
  EXPECT_NE(status.ended, "");
  const auto path = manager->ResultPath(started->name);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, state_ + "/calibrations/m/mine.safetensors");
  EXPECT_EQ(status.result_bytes, ReadFile(*path)->size());
  EXPECT_EQ((*catalog_.Find("m"))->calibrations->ActiveName(), "mine");
  EXPECT_EQ(engine_->calibrated_tokens(), std::vector<int32_t>({'s', 'o', 'm', 'e', ' ', 't', 'e', 'x', 't'}));
}

TEST_F(Operations, LeaveNoCalibrationBehindThatCouldNotBeTakenUp) {
  const auto manager = Open();
  const std::string folder = state_ + "/calibrations/m";
  // The name of the active calibration cannot be written there.
  ASSERT_TRUE(MakeDirectories(folder + "/active/x").ok());
  const OperationStatus status = RunToEnd(*manager, MustStart(*manager, "a").name);
  EXPECT_EQ(status.state, OperationState::kFailed);
  EXPECT_THAT(FilesIn("calibrations/m"), IsEmpty());
  EXPECT_THAT((*catalog_.Find("m"))->calibrations->List(), IsEmpty());
  std::filesystem::remove_all(folder + "/active");
  EXPECT_EQ(RunToEnd(*manager, MustStart(*manager, "a").name).state, OperationState::kSucceeded);
  EXPECT_EQ((*catalog_.Find("m"))->calibrations->ActiveName(), "a");
}

TEST_F(Operations, TellWatchersEveryChangeInOrderAndTheEndOnce) {
  const auto manager = Open();
  engine_->BlockCalibrations();
  const OperationStatus started = MustStart(*manager);
  Watcher watcher, dropped;
  const auto watch = manager->Watch(started.name, watcher.callback());
  const auto other = manager->Watch(started.name, dropped.callback());
  ASSERT_TRUE(watch.ok() && other.ok());
  engine_->WaitUntilCalibrating();
  manager->Unwatch(*other);
  const size_t heard = dropped.heard().size();
  EXPECT_GE(heard, 1u);
  engine_->ReleaseCalibrations();
  EXPECT_EQ(watcher.WaitUntilDone().state, OperationState::kSucceeded);
  double progress = 0;
  for (const OperationStatus& status : watcher.heard()) {
    EXPECT_GE(status.progress, progress);
    progress = status.progress;
  }
  EXPECT_GE(watcher.heard().size(), 20u);
  EXPECT_EQ(dropped.heard().size(), heard);
  // Who comes late hears the end.
  EXPECT_EQ(RunToEnd(*manager, started.name).state, OperationState::kSucceeded);
}

TEST_F(Operations, EndAsCancelledSoonAfterTheyAreAskedTo) {
  const auto manager = Open();
  engine_->BlockCalibrations();
  const OperationStatus running = MustStart(*manager, "a");
  engine_->WaitUntilCalibrating();
  const OperationStatus waiting = MustStart(*manager, "b");
  EXPECT_EQ(manager->Cancel(waiting.name)->state, OperationState::kCancelled);
  EXPECT_THAT(manager->ResultPath(running.name),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not ended")));
  EXPECT_TRUE(manager->Cancel(running.name).ok());
  EXPECT_EQ(RunToEnd(*manager, running.name).state, OperationState::kCancelled);
  EXPECT_THAT(manager->ResultPath(running.name), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without")));
  EXPECT_EQ(manager->Cancel(running.name)->state, OperationState::kCancelled);
  EXPECT_THAT((*catalog_.Find("m"))->calibrations->List(), IsEmpty());
  engine_->ReleaseCalibrations();
  EXPECT_EQ(RunToEnd(*manager, MustStart(*manager, "a").name).state, OperationState::kSucceeded);
}

TEST_F(Operations, SayWhyTheyFailed) {
  const auto manager = Open();
  engine_->FailCalibrations(absl::InvalidArgumentError("the corpus is too short"));
  const OperationStatus status = RunToEnd(*manager, MustStart(*manager).name);
  EXPECT_EQ(status.state, OperationState::kFailed);
  EXPECT_THAT(status.error, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too short")));
}

TEST_F(Operations, RunOneAtATimeInOrderAndRefuseTooMany) {
  OperationsOptions options = Options();
  options.max_waiting = 2;
  const auto manager = Open(options);
  engine_->BlockCalibrations();
  std::vector<std::string> names = {MustStart(*manager).name};
  engine_->WaitUntilCalibrating();
  names.push_back(MustStart(*manager).name);
  names.push_back(MustStart(*manager).name);
  const auto corpus = Upload(*manager, {"x"});
  const absl::Status refused = manager->Start("m", Spec(corpus->name)).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2 operations")));
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_OPERATIONS");
  EXPECT_EQ(manager->Get(names[0])->state, OperationState::kRunning);
  EXPECT_EQ(manager->Get(names[1])->state, OperationState::kWaiting);
  engine_->ReleaseCalibrations();
  for (const std::string& name : names) EXPECT_EQ(RunToEnd(*manager, name).state, OperationState::kSucceeded);
}

TEST_F(Operations, RefuseBadRequests) {
  const auto manager = Open();
  const std::string corpus = Upload(*manager, {"x"})->name;
  EXPECT_THAT(manager->Start("other", Spec(corpus)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("this server has")));
  const absl::Status missing = manager->Start("m", Spec("corpora/" + std::string(64, 'a'))).status();
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, HasSubstr("upload it first")));
  EXPECT_EQ(ReasonOf(missing), "CORPUS_NOT_FOUND");
  for (const char* name : {"", "corpora/", "corpora/../../etc/passwd", "/etc/passwd"}) {
    EXPECT_THAT(manager->Start("m", Spec(name)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("corpora/SHA256")));
  }
  EXPECT_THAT(manager->Start("m", Spec(corpus, "../x")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name")));
  CalibrateSpec spec = Spec(corpus);
  spec.options.ridge = std::nan("");
  EXPECT_THAT(manager->Start("m", spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ridge")));
  for (const double ridge : {0.0, 1e300}) {
    spec.options.ridge = ridge;
    EXPECT_THAT(manager->Start("m", spec),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be above 0 and at most 1e+12")));
  }
  spec = Spec(corpus);
  spec.options.window_tokens = 8;
  spec.options.sink_positions = 7;
  EXPECT_THAT(manager->Start("m", spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sink_positions is 7, must be in [0, 6]")));
  spec = Spec(corpus);
  spec.options.gateable_cost_limit = -1;
  EXPECT_THAT(manager->Start("m", spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gateable_cost_limit")));
  spec = Spec(corpus);
  spec.options.max_consensus = 65;
  EXPECT_THAT(manager->Start("m", spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1, 64]")));
  spec = Spec(corpus);
  spec.options.window_tokens = 65;
  EXPECT_THAT(manager->Start("m", spec), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("window_tokens")));
  engine_->BlockCalibrations();
  ASSERT_TRUE(manager->Start("m", Spec(corpus, "same")).ok());
  EXPECT_THAT(manager->Start("m", Spec(corpus, "same")), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("same")));
  for (const char* name :
       {"", "x", "operations/r1", "operations/r1/absent", "operations/../x", "operations/r2/absent"}) {
    EXPECT_THAT(manager->Get(name), StatusIs(absl::StatusCode::kNotFound, HasSubstr(""))) << name;
    EXPECT_THAT(manager->Cancel(name), StatusIs(absl::StatusCode::kNotFound, HasSubstr(""))) << name;
    EXPECT_THAT(manager->Watch(name, [](const OperationStatus&) {}),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  }
}

TEST_F(Operations, AreListedNewestFirstInPages) {
  const auto manager = Open();
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) names.insert(names.begin(), MustStart(*manager).name);
  std::vector<std::string> listed;
  std::string token;
  int pages = 0;
  do {
    const auto page = manager->List(2, token);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LE(page->operations.size(), 2u);
    for (const OperationStatus& operation : page->operations) listed.push_back(operation.name);
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(listed, names);
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(manager->List(0, "")->operations.size(), 5u);
  EXPECT_EQ(manager->List(5, "")->next_page_token, "");
  EXPECT_THAT(manager->List(1001, ""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("page_size")));
  EXPECT_THAT(manager->List(-1, ""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("page_size")));
  EXPECT_THAT(manager->List(2, "nonsense"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("page_token")));
}

TEST_F(Operations, SurviveARestartAndSayWhichOnesItInterrupted) {
  std::string finished, running, waiting;
  {
    const auto manager = Open();
    finished = MustStart(*manager, "done").name;
    EXPECT_EQ(RunToEnd(*manager, finished).state, OperationState::kSucceeded);
    engine_->BlockCalibrations();
    running = MustStart(*manager).name;
    engine_->WaitUntilCalibrating();
    waiting = MustStart(*manager).name;
    Watcher watcher;
    ASSERT_TRUE(manager->Watch(running, watcher.callback()).ok());
    manager->Shutdown();
    EXPECT_EQ(watcher.WaitUntilDone().state, OperationState::kInterrupted);
    EXPECT_THAT(manager->Start("m", Spec("corpora/" + Sha256Hex("some text"))),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  }
  // One that a crash left running.
  std::ofstream(state_ + "/operations/r1/20260101T000000.000.json")
      << R"({"kind":"calibrate","model":"m","state":"running","progress":0.5,"stage":"x","created":"2026-01-01T00:00:00Z"})";
  std::ofstream(state_ + "/operations/r1/20260101T000000.001.json") << "{damaged";
  const auto manager = Open();
  EXPECT_EQ(manager->Get(finished)->state, OperationState::kSucceeded);
  EXPECT_EQ(manager->Get(finished)->result, "done");
  EXPECT_TRUE(manager->ResultPath(finished).ok());
  EXPECT_EQ(manager->Get(running)->state, OperationState::kInterrupted);
  EXPECT_EQ(manager->Get(waiting)->state, OperationState::kInterrupted);
  const auto crashed = manager->Get("operations/r1/20260101T000000.000");
  ASSERT_TRUE(crashed.ok()) << crashed.status();
  EXPECT_EQ(crashed->state, OperationState::kInterrupted);
  EXPECT_EQ(crashed->progress, 0.5);
  EXPECT_NE(crashed->ended, "");
  EXPECT_THAT(*ReadFile(state_ + "/operations/r1/20260101T000000.000.json"), HasSubstr("interrupted"));
  EXPECT_EQ(manager->List(0, "")->operations.size(), 4u);
}

TEST_F(Operations, OfAnotherReplicaCanBeReadButNotSteered) {
  const auto other = Open(Options("r2"));
  const auto ours = Open(Options("r1"));
  const OperationStatus finished = MustStart(*other, "theirs");
  EXPECT_EQ(RunToEnd(*other, finished.name).state, OperationState::kSucceeded);
  engine_->BlockCalibrations();
  const OperationStatus running = MustStart(*other);
  engine_->WaitUntilCalibrating();
  EXPECT_THAT(running.name, StartsWith("operations/r2/"));
  EXPECT_EQ(ours->Get(running.name)->state, OperationState::kRunning);
  EXPECT_EQ(ours->List(0, "")->operations.size(), 2u);
  const absl::Status cancel = ours->Cancel(running.name).status();
  EXPECT_THAT(cancel, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replica r2")));
  EXPECT_EQ(ReasonOf(cancel), "OTHER_REPLICA");
  EXPECT_THAT(ours->Get("operations/r3/20260101T000000.000"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("replica r1 sees no operations/r3/20260101T000000.000: "
                                                              "ask replica r3")));
  EXPECT_THAT(ours->Watch(running.name, [](const OperationStatus&) {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replica r2")));
  EXPECT_EQ(RunToEnd(*ours, finished.name).state, OperationState::kSucceeded);
  EXPECT_TRUE(ours->ResultPath(finished.name).ok());
  EXPECT_EQ(ours->Cancel(finished.name)->result, "theirs");
}

TEST_F(Operations, NeedAStateDirectoryOfTheirOwn) {
  const auto manager = Open();
  EXPECT_THAT(OperationManager::Create(catalog_, Options()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another server runs as replica r1")));
  EXPECT_THAT(OperationManager::Create(catalog_, Options("../x")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("replica")));
  OperationsOptions options = Options();
  options.state_dir = "";
  EXPECT_THAT(OperationManager::Create(catalog_, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("state directory")));
  std::ofstream(state_ + "/file") << "x";
  options.state_dir = state_ + "/file";
  EXPECT_FALSE(OperationManager::Create(catalog_, options).ok());
}

TEST_F(Operations, ThatEndedFirstGoFirstWhereThereAreMoreThanAreKept) {
  OperationsOptions options = Options();
  options.keep_operations = 2;
  std::vector<std::string> names;
  {
    const auto manager = Open(options);
    for (const char* name : {"a", "b", "c"}) {
      names.push_back(MustStart(*manager, name).name);
      RunToEnd(*manager, names.back());
    }
    engine_->BlockCalibrations();
    names.push_back(MustStart(*manager).name);  // unfinished ones do not count
    engine_->WaitUntilCalibrating();
    EXPECT_THAT(manager->Get(names[0]), StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
    EXPECT_EQ(manager->Get(names[1])->result, "b");
    EXPECT_EQ(manager->List(0, "")->operations.size(), 3u);
    // The calibration stays: it is the model's.
    EXPECT_EQ((*catalog_.Find("m"))->calibrations->List().size(), 3u);
  }
  options.keep_operations = 1;
  const auto manager = Open(options);
  const auto left = manager->List(0, "");
  ASSERT_EQ(left->operations.size(), 1u);
  EXPECT_EQ(left->operations[0].name, names[3]);
  EXPECT_EQ(FilesIn("operations/r1").size(), 2u);  // with the lock
}

TEST_F(Operations, AreCountedByKindAndStateFromZero) {
  auto manager = Open();
  OperationLoad load = manager->Load();
  EXPECT_EQ(load.counts.size(), 13u);
  for (const auto& [kind, states] : load.counts) {
    EXPECT_EQ(states.size(), 6u) << kind;
    for (const auto& [state, count] : states) EXPECT_EQ(count, 0) << kind << NameOf(state);
  }
  engine_->BlockCalibrations();
  const OperationStatus first = MustStart(*manager);
  engine_->WaitUntilCalibrating();
  MustStart(*manager);
  load = manager->Load();
  EXPECT_EQ(load.counts["calibrate"][OperationState::kRunning], 1);
  EXPECT_EQ(load.counts["calibrate"][OperationState::kWaiting], 1);
  EXPECT_EQ(load.counts["two_phase"][OperationState::kRunning], 0);
  EXPECT_EQ(load.progress, manager->Get(first.name)->progress);
  EXPECT_TRUE(manager->Cancel(first.name).ok());
  EXPECT_EQ(RunToEnd(*manager, first.name).state, OperationState::kCancelled);
  manager->Shutdown();
  load = manager->Load();
  EXPECT_EQ(load.counts["calibrate"][OperationState::kRunning], 0);
  EXPECT_EQ(load.counts["calibrate"][OperationState::kWaiting], 0);
  EXPECT_EQ(load.counts["calibrate"][OperationState::kCancelled], 1);
  EXPECT_EQ(load.counts["calibrate"][OperationState::kInterrupted], 1);
  EXPECT_EQ(load.progress, 0);
}

TEST_F(Operations, CheckBudgetsBeforeTheyStart) {
  const auto manager = Open();
  const std::string corpus = Upload(*manager, {"text"})->name;
  const auto refused = [&](auto change) {
    CalibrateSpec spec = Spec(corpus);
    spec.options.budget.budgets = {0.01};
    change(spec.options.budget);
    return manager->Start("m", spec).status();
  };
  const auto invalid = [](const char* text) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)); };
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.budgets = {0.01, 0}; }), invalid("budget.budgets is 0"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.budgets = {11}; }), invalid("at most 10"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.budgets = {NAN}; }), invalid("budget.budgets is nan"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.budgets = {0.1, 0.1}; }), invalid("each once"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.budgets.assign(17, 1); }), invalid("at most 16"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.ladder_share = 1; }),
              invalid("ladder_share is 1, must be in (0, 1)"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.tune_steps = -1; }), invalid("tune_steps"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.tune_sequences = 0; }), invalid("[1, 256]"));
  EXPECT_THAT(refused([](BudgetOptions& budget) { budget.tune_work_saved = NAN; }), invalid("tune_work_saved"));
  EXPECT_TRUE(refused([](BudgetOptions&) {}).ok());
}

}  // namespace
}  // namespace gatehouse::testing
