#include "server/base/npz.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<float> kFloats = {1.5f, -2, 0.25f, 3, 4, 5};
const std::vector<double> kDoubles = {0.1};
const std::vector<int64_t> kIntegers = {-1, int64_t{1} << 40};

std::vector<NpzArray> Arrays() {
  return {{"floats", {2, 3}, std::span(kFloats)},
          {"a.double", {}, std::span(kDoubles)},
          {"caf\u00e9", {2}, std::span(kIntegers)},
          {"none", {0, 4}, std::span<const double>()}};
}

// What Python prints for a program that is given the file's path; empty where there is no
// Python with numpy.
std::string AskNumpy(const std::string& path, const std::string& program) {
  const char* const source = std::getenv("GATEHOUSE_SOURCE_DIR");
  const std::string own = std::string(source == nullptr ? "." : source) + "/.venv/bin/python";
  const std::string python = std::filesystem::exists(own) ? own : "python3";
  const std::string command =
      python + " -c 'import sys, numpy as np; a = np.load(sys.argv[1]); " + program + "' '" + path + "' 2>/dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string output;
  std::array<char, 256> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  pclose(pipe);
  return output;
}

TEST(Npz, IsReadByNumpy) {
  const auto bytes = EncodeNpz(Arrays());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const std::string path = ::testing::TempDir() + "/npz-test-" + std::to_string(getpid()) + ".npz";
  std::ofstream(path, std::ios::binary) << *bytes;
  const std::string said = AskNumpy(path, "print([(k, a[k].dtype.str, a[k].shape, a[k].tolist()) for k in a.files])");
  std::filesystem::remove(path);
  if (said.empty()) GTEST_SKIP() << "no Python with numpy";
  EXPECT_EQ(said,
            "[('floats', '<f4', (2, 3), [[1.5, -2.0, 0.25], [3.0, 4.0, 5.0]]), ('a.double', '<f8', (), 0.1), "
            "('caf\u00e9', '<i8', (2,), [-1, 1099511627776]), ('none', '<f8', (0, 4), [])]\n");
}

TEST(Npz, HoldsTheValuesAsTheyLieInMemoryAfterAnAlignedHeader) {
  const auto bytes = EncodeNpz(Arrays());
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->substr(0, 4), "PK\x03\x04");
  const size_t magic = bytes->find(std::string("\x93NUMPY\x01\x00", 8));
  ASSERT_NE(magic, std::string::npos);
  EXPECT_EQ(bytes->substr(magic - 10, 10), "floats.npy");
  const size_t length = static_cast<unsigned char>((*bytes)[magic + 8]) +
                        256 * static_cast<size_t>(static_cast<unsigned char>((*bytes)[magic + 9]));
  EXPECT_EQ((10 + length) % 64, 0u);
  EXPECT_THAT(bytes->substr(magic + 10, length), HasSubstr("'shape': (2,3,)"));
  EXPECT_EQ(std::memcmp(bytes->data() + magic + 10 + length, kFloats.data(), kFloats.size() * sizeof(float)), 0);
  EXPECT_EQ(*EncodeNpz(Arrays()), *bytes);
}

TEST(Npz, OfNoArraysIsAnEmptyArchive) { EXPECT_EQ(EncodeNpz({})->size(), 22u); }

TEST(Npz, RefusesNamesAndShapesThatDoNotFit) {
  const auto refused = [](NpzArray array, const char* text) {
    EXPECT_THAT(EncodeNpz(std::array{array}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused({"", {1}, std::span(kDoubles)}, "name");
  refused({"a/b", {1}, std::span(kDoubles)}, "a/b");
  refused({"a", {2}, std::span(kDoubles)}, "shape");
  refused({"a", {-1, -1}, std::span(kDoubles)}, "shape");
  refused({"a", std::vector<int64_t>(33, 1), std::span(kDoubles)}, "shape");
  const NpzArray array = {"a", {1}, std::span(kDoubles)};
  EXPECT_THAT(EncodeNpz(std::array{array, array}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two arrays are named 'a'")));
}

}  // namespace
}  // namespace gatehouse::testing
