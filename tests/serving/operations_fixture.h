#ifndef GATEHOUSE_TESTS_SERVING_OPERATIONS_FIXTURE_H_
#define GATEHOUSE_TESTS_SERVING_OPERATIONS_FIXTURE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/base/files.h"
#include "server/serving/operations.h"
#include "tests/support/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {

// Collects what a watch hears.
class Watcher {
 public:
  OperationManager::Changed callback() {
    return [this](const OperationStatus& status) {
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(heard_.empty() || !heard_.back().done()) << "a change after the end";
      heard_.push_back(status);
      changed_.notify_all();
    };
  }
  OperationStatus WaitUntilDone() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60),
                           [this] { return !heard_.empty() && heard_.back().done(); })) {
      ADD_FAILURE() << "the operation did not end";
    }
    return heard_.empty() ? OperationStatus{} : heard_.back();
  }
  std::vector<OperationStatus> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<OperationStatus> heard_;
};

// A state directory, and managers of its operations for one fake model, "m".
class OperationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    state_ = ::testing::TempDir() + "/gatehouse-operations-" + std::to_string(getpid()) + "-" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(state_);
    ASSERT_TRUE(MakeDirectories(state_).ok());
    ASSERT_TRUE(catalog_.Add(MakeFakeModel("m", {}, &engine_, state_ + "/calibrations/m")).ok());
  }
  void TearDown() override { std::filesystem::remove_all(state_); }

  OperationsOptions Options(const std::string& replica = "r1") const {
    return {.state_dir = state_, .replica = replica, .corpus_limit_bytes = 100};
  }
  std::unique_ptr<OperationManager> Open(const OperationsOptions& options) {
    auto manager = OperationManager::Create(catalog_, options);
    EXPECT_TRUE(manager.ok()) << manager.status();
    return *std::move(manager);
  }
  std::unique_ptr<OperationManager> Open() { return Open(Options()); }

  static absl::StatusOr<CorpusUpload::Corpus> Upload(OperationManager& manager, const std::vector<std::string>& pieces,
                                                     const std::string& label = "a corpus") {
    auto upload = manager.BeginUpload(label);
    if (!upload.ok()) return upload.status();
    for (const std::string& piece : pieces) {
      const absl::Status status = (*upload)->Append(piece);
      if (!status.ok()) return status;
    }
    return (*upload)->Finish();
  }

  static CalibrateSpec Spec(const std::string& corpus, const std::string& name = "") {
    CalibrateSpec spec;
    spec.corpus = corpus;
    spec.options.name = name;
    return spec;
  }

  // Starts a calibration on an uploaded corpus.
  static OperationStatus MustStart(OperationManager& manager, const std::string& name = "") {
    const auto corpus = Upload(manager, {"some text"});
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    const auto status = manager.Start("m", Spec(corpus->name, name));
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(OperationStatus{});
  }
  static OperationStatus RunToEnd(OperationManager& manager, const std::string& name) {
    Watcher watcher;
    const auto watch = manager.Watch(name, watcher.callback());
    EXPECT_TRUE(watch.ok()) << watch.status();
    const OperationStatus status = watcher.WaitUntilDone();
    manager.Unwatch(*watch);
    return status;
  }

  std::vector<std::string> FilesIn(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(state_ + "/" + folder)) {
      if (file.is_regular_file()) names.push_back(file.path().filename());
    }
    return names;
  }

  std::string state_;
  ModelCatalog catalog_;
  FakeEngine* engine_ = nullptr;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_SERVING_OPERATIONS_FIXTURE_H_
