// The corpora that operations read: uploaded, kept and forgotten.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/base/digest.h"
#include "server/base/error_reason.h"
#include "server/base/files.h"
#include "server/serving/operations.h"
#include "tests/serving/operations_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using UploadedCorpora = OperationsTest;

TEST_F(UploadedCorpora, AreKeptUnderTheDigestOfTheirBytes) {
  const auto manager = Open();
  const auto corpus = Upload(*manager, {"some ", "text"});
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->name, "corpora/" + Sha256Hex("some text"));
  EXPECT_EQ(corpus->size_bytes, 9u);
  EXPECT_EQ(*ReadFile(state_ + "/" + corpus->name), "some text");
  EXPECT_EQ(Upload(*manager, {"some text"})->name, corpus->name);
  EXPECT_EQ(FilesIn("corpora").size(), 2u);
}

TEST_F(UploadedCorpora, AreRefusedOverTheLimitAndLeaveNothingBehind) {
  const auto manager = Open();
  EXPECT_TRUE(Upload(*manager, {std::string(100, 'x')}).ok());
  const size_t files = FilesIn("corpora").size();
  const absl::Status status = Upload(*manager, {std::string(60, 'y'), std::string(41, 'y')}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit of 100 bytes")));
  EXPECT_EQ(ReasonOf(status), "UPLOAD_TOO_LARGE");
  EXPECT_EQ(FilesIn("corpora").size(), files);
}

TEST_F(UploadedCorpora, AreUtf8AlsoAcrossThePiecesOfAnUpload) {
  const auto manager = Open();
  EXPECT_TRUE(Upload(*manager, {"caf\xC3", "\xA9", "\xF0\x9F", "\x98\x80"}).ok());
  const size_t files = FilesIn("corpora").size();
  for (const std::vector<std::string>& pieces :
       std::vector<std::vector<std::string>>{{"caf\xC3", "e"}, {"caf\xC3"}, {"\xFF"}, {"ok", "\xC0\x80"}}) {
    EXPECT_THAT(Upload(*manager, pieces), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  }
  EXPECT_THAT(Upload(*manager, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(Upload(*manager, {"x"}, "two\nlines"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one line")));
  EXPECT_EQ(FilesIn("corpora").size(), files);
}

TEST_F(UploadedCorpora, AreForgottenWhereTheUploadWasDroppedOrARestartInterruptedIt) {
  auto manager = Open();
  {
    auto upload = manager->BeginUpload("x");
    ASSERT_TRUE(upload.ok());
    EXPECT_TRUE((*upload)->Append("some").ok());
    EXPECT_EQ(FilesIn("corpora").size(), 1u);
  }
  EXPECT_THAT(FilesIn("corpora"), IsEmpty());
  std::ofstream(state_ + "/corpora/.upload-r1-7") << "left by a crash";
  std::ofstream(state_ + "/corpora/.upload-r2-7") << "another replica's, perhaps alive";
  manager.reset();
  manager = Open();
  EXPECT_THAT(FilesIn("corpora"), ElementsAre(".upload-r2-7"));
}

TEST_F(UploadedCorpora, AreRefusedWhereTheDiskIsFull) {
  const auto manager = Open();
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit small{.rlim_cur = 10, .rlim_max = old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = Upload(*manager, {std::string(50, 'x')}).status();
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("corpus")));
  EXPECT_EQ(ReasonOf(status), "DISK_FULL");
  EXPECT_THAT(FilesIn("corpora"), IsEmpty());
}

TEST_F(UploadedCorpora, AreReadInPiecesWithTheTokensOfTheWhole) {
  OperationsOptions options = Options();
  options.corpus_limit_bytes = 8 << 20;
  const auto manager = Open(options);
  std::string text;
  while (text.size() < (5 << 19)) text += "A line of text, caf\u00e9.\n\n  Another  one\n";
  const auto corpus = Upload(*manager, {text});
  const auto started = manager->Start("m", Spec(corpus->name));
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(RunToEnd(*manager, started->name).state, OperationState::kSucceeded);
  const auto whole = (*catalog_.Find("m"))->tokenizer->Encode(text);
  EXPECT_TRUE(engine_->calibrated_tokens() == *whole);
}

TEST_F(UploadedCorpora, FailTheOperationWhereTheyAreNoLongerWhatWasUploaded) {
  OperationsOptions options = Options();
  options.corpus_limit_bytes = 8 << 20;
  const auto manager = Open(options);
  const auto corpus = Upload(*manager, {std::string(3 << 20, 'x')});
  std::filesystem::resize_file(state_ + "/" + corpus->name, 2 << 20);
  const auto started = manager->Start("m", Spec(corpus->name));
  ASSERT_TRUE(started.ok()) << started.status();
  const OperationStatus status = RunToEnd(*manager, started->name);
  EXPECT_EQ(status.state, OperationState::kFailed);
  EXPECT_THAT(status.error, StatusIs(absl::StatusCode::kDataLoss, HasSubstr(corpus->name + " has changed")));
}

TEST_F(UploadedCorpora, AreKeptWhereTheyWereUsedLastOrAreNeeded) {
  OperationsOptions options = Options();
  options.keep_corpora = 2;
  const auto manager = Open(options);
  const auto age = [&](const std::string& corpus, int hours) {
    std::filesystem::last_write_time(state_ + "/" + corpus,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const auto there = [&](const std::string& corpus) { return std::filesystem::exists(state_ + "/" + corpus); };
  const std::string needed = Upload(*manager, {"needed"})->name;
  const std::string old = Upload(*manager, {"old"})->name;
  const std::string used = Upload(*manager, {"used"})->name;
  engine_->BlockCalibrations();
  const auto running = manager->Start("m", Spec(needed));
  ASSERT_TRUE(running.ok()) << running.status();
  engine_->WaitUntilCalibrating();
  age(needed, 3);
  age(old, 2);
  age(used, 1);
  const std::string fresh = Upload(*manager, {"fresh"})->name;
  EXPECT_TRUE(there(needed) && there(used) && there(fresh));
  EXPECT_FALSE(there(old));
  EXPECT_FALSE(there(old + ".json"));
  EXPECT_THAT(manager->Start("m", Spec(old)), StatusIs(absl::StatusCode::kNotFound, HasSubstr("upload it first")));
  engine_->ReleaseCalibrations();
  EXPECT_EQ(RunToEnd(*manager, running->name).state, OperationState::kSucceeded);
  manager->Shutdown();  // the worker has cleared up
  EXPECT_FALSE(there(needed));
  EXPECT_TRUE(there(used) && there(fresh));
}

}  // namespace
}  // namespace gatehouse::testing
