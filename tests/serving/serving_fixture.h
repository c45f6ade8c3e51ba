#ifndef GATEHOUSE_TESTS_SERVING_SERVING_FIXTURE_H_
#define GATEHOUSE_TESTS_SERVING_SERVING_FIXTURE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/base/files.h"
#include "server/serving/call.h"
#include "server/serving/observer.h"
#include "server/serving/scheduler.h"
#include "tests/support/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {

// What every recording sink has: it checks that nothing comes after the end, and lets a
// test wait for events and make the reader slow.
template <typename Base>
class RecordingSink : public Base {
 public:
  bool CanAccept() const override { return accepts_.load(); }

  void OnEnd(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(end_.has_value()) << "ended twice";
    end_ = status;
    changed_.notify_all();
  }

  void SetAccepts(bool accepts) { accepts_.store(accepts); }

  // The status the call ended with.
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return end_.has_value(); })) {
      ADD_FAILURE() << "the call did not end";
      return absl::UnknownError("the call did not end");
    }
    return *end_;
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return end_.has_value();
  }
  // Returns once `count` events have come.
  void WaitForEvents(int count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return events_ >= count; })) {
      ADD_FAILURE() << "only " << events_ << " events came";
    }
  }
  int events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }

 protected:
  // Called for every event, with what it does to the record.
  template <typename Change>
  void Record(const Change& change) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(end_.has_value()) << "an event after the end";
    change();
    ++events_;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<absl::Status> end_;
  int events_ = 0;
  std::atomic<bool> accepts_{true};
};

// The members are read after Wait, or on the test's own guard.
class GenerationRecord final : public RecordingSink<GenerationSink> {
 public:
  void OnStart(const GenerationStart& event) override {
    Record([&] {
      EXPECT_FALSE(start.has_value());
      start = event;
    });
  }
  void OnPrompt(std::vector<TokenInsight> tokens) override {
    Record([&] { prompt.insert(prompt.end(), tokens.begin(), tokens.end()); });
  }
  void OnToken(GeneratedToken token) override {
    Record([&] { tokens.push_back(std::move(token)); });
  }
  void OnActivations(Activations event) override {
    Record([&] { activations.push_back(std::move(event)); });
  }
  void OnSummary(GenerationSummary event) override {
    Record([&] { summary = std::move(event); });
  }

  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : tokens) ids.push_back(token.id);
    return ids;
  }
  // All text of the call.
  std::string text() const {
    std::string text;
    for (const GeneratedToken& token : tokens) text += token.text;
    return summary.has_value() ? text + summary->text : text;
  }

  std::optional<GenerationStart> start;
  std::vector<TokenInsight> prompt;
  std::vector<GeneratedToken> tokens;
  std::vector<Activations> activations;
  std::optional<GenerationSummary> summary;
};

class ScoreRecord final : public RecordingSink<ScoreSink> {
 public:
  void OnTokens(std::vector<ScoredToken> scored) override {
    Record([&] { tokens.insert(tokens.end(), scored.begin(), scored.end()); });
  }
  void OnActivations(Activations event) override {
    Record([&] { activations.push_back(std::move(event)); });
  }
  void OnSummary(ScoreSummary event) override {
    Record([&] { summary = std::move(event); });
  }

  std::vector<ScoredToken> tokens;
  std::vector<Activations> activations;
  std::optional<ScoreSummary> summary;
};

class AnalysisRecord final : public RecordingSink<AnalysisSink> {
 public:
  void OnStart(std::shared_ptr<const Calibration> used) override {
    Record([&] { calibration = std::move(used); });
  }
  void OnTokens(InsightTokens event) override {
    Record([&] {
      auto& list = tokens[event.input];
      list.insert(list.end(), event.tokens.begin(), event.tokens.end());
    });
  }
  void OnSummary(AnalysisSummary event) override {
    Record([&] { summary = std::move(event); });
  }

  std::shared_ptr<const Calibration> calibration;
  std::map<int, std::vector<TokenInsight>> tokens;  // by input
  std::optional<AnalysisSummary> summary;
};

// Adds up what it is told.
class CountingObserver final : public Observer {
 public:
  struct Routed {
    uint64_t tokens = 0;
    std::vector<uint64_t> linear, ladder, skip;  // [layers]
  };

  void OnRouted(std::string_view model, Phase phase, int tokens, const PathTokens& paths) override {
    const std::lock_guard lock(mutex_);
    Routed& routed = routed_[{std::string(model), phase}];
    routed.tokens += tokens;
    const auto add = [](std::span<const uint32_t> tokens, auto& sums) {
      sums.resize(tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) sums[i] += tokens[i];
    };
    add(paths.linear, routed.linear);
    add(paths.ladder, routed.ladder);
    add(paths.skip, routed.skip);
  }
  void OnInterToken(std::string_view, double seconds) override {
    const std::lock_guard lock(mutex_);
    EXPECT_GE(seconds, 0);
    ++inter_tokens_;
  }
  void OnStep(std::string_view, int rows, int, double seconds) override {
    const std::lock_guard lock(mutex_);
    EXPECT_GE(seconds, 0);
    step_rows_.push_back(rows);
  }
  void OnCallEnd(const CallObservation& call) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }

  Routed routed(const std::string& model, Phase phase) const {
    const std::lock_guard lock(mutex_);
    const auto found = routed_.find({model, phase});
    return found == routed_.end() ? Routed{} : found->second;
  }
  std::vector<CallObservation> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  int inter_tokens() const {
    const std::lock_guard lock(mutex_);
    return inter_tokens_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Phase>, Routed> routed_;
  std::vector<CallObservation> calls_;
  std::vector<int> step_rows_;
  int inter_tokens_ = 0;
};

// One fake model, "m", and a scheduler that runs it.
class ServingTest : public ::testing::Test {
 protected:
  // Starts the scheduler; called by the first Start* with the defaults.
  void Run(const SchedulerOptions& options = {}, const FakeEngineOptions& engine_options = {}) {
    const std::string folder =
        ::testing::TempDir() + "/gatehouse-serving-" + std::to_string(++folders_) + "-" + std::to_string(getpid());
    EXPECT_TRUE(MakeDirectories(folder).ok());
    EXPECT_TRUE(WriteFakeCalibration(folder + "/cal.safetensors", FakeCalibrationInfo("cal", engine_options)).ok());
    EXPECT_TRUE(catalog_.Add(MakeFakeModel("m", engine_options, &engine_, folder)).ok());
    scheduler_ = Scheduler::Create(catalog_, options, observer_);
  }

  static GenerateRequest Prompt(std::vector<int32_t> ids, uint32_t max_tokens) {
    GenerateRequest request;
    request.model = "m";
    request.prompt.token_ids = std::move(ids);
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.stop.ignore_eos = true;
    return request;
  }

  absl::StatusOr<std::shared_ptr<Call>> Start(const GenerateRequest& request,
                                              const std::shared_ptr<GenerationRecord>& sink,
                                              absl::Time deadline = absl::InfiniteFuture()) {
    if (scheduler_ == nullptr) Run();
    return scheduler_->StartGenerate(request, {.deadline = deadline}, sink);
  }

  // Runs the request to its end.
  std::shared_ptr<GenerationRecord> Generate(const GenerateRequest& request) {
    auto sink = std::make_shared<GenerationRecord>();
    const auto call = Start(request, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call.ok()) {
      EXPECT_EQ(sink->Wait(), absl::OkStatus());
    }
    return sink;
  }

  // The same.
  std::shared_ptr<ScoreRecord> Score(const ScoreRequest& request) {
    if (scheduler_ == nullptr) Run();
    auto sink = std::make_shared<ScoreRecord>();
    const auto call = scheduler_->StartScore(request, {}, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call.ok()) {
      EXPECT_EQ(sink->Wait(), absl::OkStatus());
    }
    return sink;
  }

  ModelCatalog catalog_;
  CountingObserver observer_;
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<Scheduler> scheduler_;

 private:
  int folders_ = 0;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_SERVING_SERVING_FIXTURE_H_
