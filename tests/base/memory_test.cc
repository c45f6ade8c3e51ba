#include "server/base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace gatehouse::testing {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() { std::filesystem::create_directories(folder_); }
  ~MemoryTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }

  const std::string folder_ = ::testing::TempDir() + "gatehouse-memory-test-" + std::to_string(getpid());
};

TEST_F(MemoryTest, IsSomethingOnThisMachine) {
  const std::optional<int64_t> available = AvailableMemory();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, 0);
}

TEST_F(MemoryTest, IsWhatTheSystemOrTheContainerLeaves) {
  EXPECT_EQ(AvailableMemory(folder_, folder_), std::nullopt);
  Write("meminfo", "MemTotal:  4000 kB\nMemFree:  10 kB\nMemAvailable:  3000 kB\n");
  EXPECT_EQ(AvailableMemory(folder_, folder_), 3000 * 1024);
  Write("memory.max", "max\n");
  Write("memory.current", "700000\n");
  EXPECT_EQ(AvailableMemory(folder_, folder_), 3000 * 1024);
  Write("memory.max", "1000000\n");
  EXPECT_EQ(AvailableMemory(folder_, folder_), 300000);
  Write("memory.stat", "anon 5\ninactive_file 200000\n");
  EXPECT_EQ(AvailableMemory(folder_, folder_), 500000);
  Write("memory.max", "100\n");
  EXPECT_EQ(AvailableMemory(folder_, folder_), 0);
}

TEST_F(MemoryTest, InAllIsWhatTheSystemHasOrTheContainerMayTake) {
  EXPECT_EQ(TotalMemory(folder_, folder_), std::nullopt);
  Write("meminfo", "MemTotal:  4000 kB\nMemFree:  10 kB\nMemAvailable:  3000 kB\n");
  EXPECT_EQ(TotalMemory(folder_, folder_), 4000 * 1024);
  Write("memory.max", "max\n");
  EXPECT_EQ(TotalMemory(folder_, folder_), 4000 * 1024);
  Write("memory.max", "1000000\n");
  EXPECT_EQ(TotalMemory(folder_, folder_), 1000000);
}

}  // namespace
}  // namespace gatehouse::testing
