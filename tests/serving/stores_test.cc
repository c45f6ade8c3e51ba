#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/base/strings.h"
#include "server/serving/calibration_store.h"
#include "server/serving/model_catalog.h"
#include "tests/support/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Calibrations : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/gatehouse-stores-" + std::to_string(getpid()) + "-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    shipped_ = root_ + "/shipped";
    state_ = root_ + "/state";
    ASSERT_TRUE(MakeDirectories(shipped_).ok());
    ASSERT_TRUE(MakeDirectories(state_).ok());
  }

  static void Write(const std::string& folder, const std::string& name, const std::string& created) {
    ASSERT_TRUE(
        WriteFakeCalibration(folder + "/" + name + ".safetensors", FakeCalibrationInfo(name, {}, created)).ok());
  }

  std::unique_ptr<CalibrationStore> Open() {
    auto store = CalibrationStore::Create(engine_, "m", {shipped_, root_ + "/missing"}, state_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  static std::vector<std::string> Names(const CalibrationStore& store) {
    std::vector<std::string> names;
    for (const auto& entry : store.List()) names.push_back(entry.name);
    return names;
  }

  std::string root_, shipped_, state_;
  FakeEngine engine_;
};

TEST_F(Calibrations, AreListedNewestFirstAndTheNewestServesUntilOneIsSelected) {
  Write(shipped_, "old", "2026-01-01T00:00:00Z");
  Write(state_, "new", "2026-03-01T00:00:00Z");
  Write(state_, "mid", "2026-02-01T00:00:00Z");
  const auto store = Open();
  EXPECT_THAT(Names(*store), ElementsAre("new", "mid", "old"));
  EXPECT_EQ(store->ActiveName(), "new");
  EXPECT_EQ(store->Active()->info().name, "new");
  EXPECT_EQ((*store->Get(""))->info().name, "new");
  EXPECT_EQ((*store->Get("old"))->info().name, "old");
}

TEST_F(Calibrations, RememberWhichOneWasSelectedAcrossARestart) {
  Write(shipped_, "old", "2026-01-01T00:00:00Z");
  Write(shipped_, "new", "2026-03-01T00:00:00Z");
  {
    const auto store = Open();
    EXPECT_TRUE(store->Select("old").ok());
    EXPECT_EQ(store->ActiveName(), "old");
    EXPECT_EQ((*store->Get(""))->info().name, "old");
  }
  EXPECT_EQ(Open()->ActiveName(), "old");
  std::filesystem::remove(shipped_ + "/old.safetensors");
  EXPECT_EQ(Open()->ActiveName(), "new");
}

TEST_F(Calibrations, KeepTheActiveOneWhereTheSelectedOneCannotBeRead) {
  Write(shipped_, "good", "2026-01-01T00:00:00Z");
  Write(shipped_, "bad", "2025-01-01T00:00:00Z");
  const auto store = Open();
  std::ofstream(shipped_ + "/bad.safetensors") << "damaged";
  EXPECT_THAT(store->Select("bad"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("damaged")));
  EXPECT_THAT(store->Select("absent"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("good, bad")));
  EXPECT_EQ(store->ActiveName(), "good");
}

TEST_F(Calibrations, OfAnotherModelOrDamagedOrMisnamedAreLeftOut) {
  CalibrationInfo other = FakeCalibrationInfo("other");
  other.model_fingerprint = "sha256:another";
  ASSERT_TRUE(WriteFakeCalibration(shipped_ + "/other.safetensors", other).ok());
  ASSERT_TRUE(WriteFakeCalibration(shipped_ + "/copy.safetensors", FakeCalibrationInfo("original")).ok());
  std::ofstream(shipped_ + "/damaged.safetensors") << "x";
  std::ofstream(shipped_ + "/notes.txt") << "x";
  Write(shipped_, "mine", "2026-01-01T00:00:00Z");
  EXPECT_THAT(Names(*Open()), ElementsAre("mine"));
}

TEST_F(Calibrations, SayWhatAMisnamedOneMustBeCalled) {
  const auto store = Open();
  for (const auto& [described, why] : {std::pair("original", "is another"), std::pair("", "is missing")}) {
    ASSERT_TRUE(WriteFakeCalibration(state_ + "/copy.safetensors", FakeCalibrationInfo(described)).ok());
    EXPECT_THAT(store->Adopt("copy", false), StatusIs(absl::StatusCode::kInvalidArgument,
                                                      HasSubstr(StrCat("calibration.name ", why, ", must be copy"))));
  }
}

TEST_F(Calibrations, SayThatAModelWithoutAnyIsNotCalibrated) {
  const auto store = Open();
  EXPECT_THAT(store->List(), IsEmpty());
  EXPECT_EQ(store->ActiveName(), "");
  EXPECT_EQ(store->Active(), nullptr);
  for (const char* name : {"", "x"}) {
    const absl::Status status = store->Get(name).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("model m is not calibrated")));
    EXPECT_EQ(ReasonOf(status), "NOT_CALIBRATED");
  }
}

TEST_F(Calibrations, AreReadOnceHoweverManyAsk) {
  Write(shipped_, "a", "2026-01-01T00:00:00Z");
  const auto store = Open();
  EXPECT_EQ(engine_.calibrations_loaded(), 0);
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const Calibration>> got(8);
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { got[i] = *store->Get("a"); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& calibration : got) EXPECT_EQ(calibration, got[0]);
  EXPECT_EQ(engine_.calibrations_loaded(), 1);
}

TEST_F(Calibrations, StayWithTheRequestThatUsesThemWhenAnotherIsSelected) {
  Write(shipped_, "a", "2026-01-01T00:00:00Z");
  Write(shipped_, "b", "2026-02-01T00:00:00Z");
  const auto store = Open();
  const auto in_use = *store->Get("");
  ASSERT_TRUE(store->Select("a").ok());
  EXPECT_EQ(in_use->info().name, "b");
  EXPECT_EQ((*store->Get(""))->info().name, "a");
}

TEST_F(Calibrations, AreAdoptedAndSelectedWhereAsked) {
  Write(shipped_, "a", "2026-01-01T00:00:00Z");
  const auto store = Open();
  const auto path = store->PathFor("b");
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, HasSubstr(state_));
  Write(state_, "b", "2026-05-01T00:00:00Z");
  EXPECT_TRUE(store->Adopt("b", false).ok());
  EXPECT_EQ(store->ActiveName(), "a");
  EXPECT_EQ(Open()->ActiveName(), "a");  // though b is newer
  Write(state_, "c", "2026-04-01T00:00:00Z");
  EXPECT_TRUE(store->Adopt("c", true).ok());
  EXPECT_EQ(store->ActiveName(), "c");
  EXPECT_EQ(Open()->ActiveName(), "c");
  EXPECT_THAT(Names(*store), ElementsAre("b", "c", "a"));
}

TEST_F(Calibrations, AreWrittenOnlyUnderNamesThatStayInTheirFolder) {
  Write(shipped_, "taken", "2026-01-01T00:00:00Z");
  const auto store = Open();
  for (const std::string& name :
       {std::string(), std::string("../x"), std::string("a/b"), std::string("/abs"), std::string("."),
        std::string(".."), std::string("-x"), std::string(65, 'x'), std::string("a\0b", 3), std::string("a b")}) {
    EXPECT_THAT(store->PathFor(name), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name"))) << name;
  }
  EXPECT_THAT(store->PathFor("taken"), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("taken")));
  const auto readonly = CalibrationStore::Create(engine_, "m", {shipped_}, "");
  EXPECT_THAT((*readonly)->PathFor("x"), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("state directory")));
  EXPECT_TRUE((*readonly)->Select("taken").ok());
}

TEST_F(Calibrations, CanBeUsedWhileTheyAreSwapped) {
  Write(shipped_, "a", "2026-01-01T00:00:00Z");
  Write(shipped_, "b", "2026-02-01T00:00:00Z");
  const auto store = Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        if (t == 0) {
          EXPECT_TRUE(store->Select(i % 2 == 0 ? "a" : "b").ok());
        } else {
          EXPECT_TRUE(store->Get(i % 3 == 0 ? "a" : "").ok());
          EXPECT_NE(store->Active(), nullptr);
          EXPECT_EQ(store->List().size(), 2u);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ModelCatalog, FindsModelsByNameInNameOrder) {
  ModelCatalog catalog;
  EXPECT_TRUE(catalog.Add(MakeFakeModel("b")).ok());
  EXPECT_TRUE(catalog.Add(MakeFakeModel("a")).ok());
  EXPECT_THAT(catalog.Add(MakeFakeModel("a")), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("named a")));
  EXPECT_EQ((*catalog.Find("a"))->name, "a");
  EXPECT_EQ(catalog.models().at(0)->name, "a");
  const absl::Status status = catalog.Find("c").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("no model named c; this server has: a, b")));
  EXPECT_EQ(ReasonOf(status), "MODEL_NOT_FOUND");
}

TEST(ModelCatalog, RefusesNamesThatAreNoFileNames) {
  ModelCatalog catalog;
  for (const char* name : {"", "../x", "a/b", ".hidden", "a b"}) {
    EXPECT_THAT(catalog.Add(MakeFakeModel(name)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name")));
  }
}

}  // namespace
}  // namespace gatehouse::testing
