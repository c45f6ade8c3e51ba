#include "server/base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "server/base/strings.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::HasSubstr;

// A fresh folder, removed with everything in it afterwards.
class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    std::string pattern = StrCat(::testing::TempDir(), "files-XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(std::string_view name) const { return StrCat(folder_, "/", name); }
  int FilesInFolder() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) count += entry.exists();
    return count;
  }

  std::string folder_;
};

TEST_F(FilesTest, AWrittenFileReadsBackByteForByte) {
  const std::string bytes("a\0b\n\xff", 5);
  ASSERT_TRUE(WriteFileAtomically(Path("x"), bytes).ok());
  EXPECT_EQ(ReadFile(Path("x")).value(), bytes);
  EXPECT_EQ(FilesInFolder(), 1);
}

TEST_F(FilesTest, AWriteReplacesTheOldContentWhole) {
  ASSERT_TRUE(WriteFileAtomically(Path("x"), "a longer text").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("x"), "short").ok());
  EXPECT_EQ(ReadFile(Path("x")).value(), "short");
}

TEST_F(FilesTest, ReadersSeeTheOldOrTheNewContentAndNeverAPart) {
  const std::string old_text(100'000, 'o'), new_text(100'000, 'n');
  ASSERT_TRUE(WriteFileAtomically(Path("x"), old_text).ok());
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(WriteFileAtomically(Path("x"), i % 2 == 0 ? new_text : old_text).ok());
    }
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = ReadFile(Path("x")).value();
    EXPECT_TRUE(seen == old_text || seen == new_text);
  }
  writer.join();
}

TEST_F(FilesTest, AFileThatShrinksWhileItIsReadIsShort) {
  constexpr size_t kBytes = 4 << 20;
  ASSERT_TRUE(WriteFileAtomically(Path("x"), std::string(kBytes, 'x')).ok());
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      std::filesystem::resize_file(Path("x"), 0);
      std::filesystem::resize_file(Path("x"), kBytes);
    }
  });
  for (int i = 0; i < 100; ++i) EXPECT_LE(ReadFile(Path("x")).value().size(), kBytes);
  done = true;
  other.join();
}

TEST_F(FilesTest, AWriteThatFailsLeavesNothingBehind) {
  std::filesystem::create_directory(Path("taken"));
  std::ofstream(Path("taken/file")) << "x";
  EXPECT_FALSE(WriteFileAtomically(Path("taken"), "text").ok());
  EXPECT_EQ(FilesInFolder(), 1);
}

TEST_F(FilesTest, WritingIntoAMissingFolderIsNotFoundAndNamesThePath) {
  EXPECT_THAT(WriteFileAtomically(Path("no/x"), "text"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/x")));
}

TEST_F(FilesTest, AMissingFileIsNotFoundAndNamesThePath) {
  EXPECT_THAT(ReadFile(Path("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST_F(FilesTest, ADeviceIsNotAFile) {
  EXPECT_THAT(InputFile::Open("/dev/null").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
}

TEST_F(FilesTest, AFolderIsNotAFile) {
  EXPECT_THAT(InputFile::Open(folder_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
}

TEST_F(FilesTest, AFileIsReadFromAnyPlace) {
  ASSERT_TRUE(WriteFileAtomically(Path("x"), "0123456789").ok());
  const auto file = InputFile::Open(Path("x"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 10u);
  std::string part(4, ' ');
  ASSERT_TRUE(file->Read(3, part).ok());
  EXPECT_EQ(part, "3456");
  EXPECT_TRUE(file->Read(10, {}).ok());
}

TEST_F(FilesTest, ReadingWhatAFileNoLongerHoldsIsAnErrorThatNamesIt) {
  ASSERT_TRUE(WriteFileAtomically(Path("x"), std::string(3 << 20, 'x')).ok());
  const auto file = InputFile::Open(Path("x"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(Path("x"), 1 << 20);
  std::string part(1 << 20, ' ');
  EXPECT_TRUE(file->Read(0, part).ok());
  EXPECT_THAT(file->Read(1, part), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/x became shorter")));
  EXPECT_THAT(file->Read(2 << 20, part), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/x became shorter")));
}

TEST_F(FilesTest, AFileOverTheLimitIsRefused) {
  ASSERT_TRUE(WriteFileAtomically(Path("x"), "12345").ok());
  EXPECT_EQ(ReadFile(Path("x"), 5).value(), "12345");
  EXPECT_THAT(ReadFile(Path("x"), 4), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit of 4")));
}

TEST_F(FilesTest, FoldersAreMadeWithTheirParents) {
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  EXPECT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  EXPECT_TRUE(std::filesystem::is_directory(Path("a/b/c")));
}

TEST_F(FilesTest, AFolderUnderAFileIsRefused) {
  ASSERT_TRUE(WriteFileAtomically(Path("x"), "text").ok());
  EXPECT_FALSE(MakeDirectories(Path("x/b")).ok());
}

}  // namespace
}  // namespace gatehouse
