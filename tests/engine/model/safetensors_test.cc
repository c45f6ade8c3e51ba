#include "server/engine/model/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>

#include "server/base/files.h"
#include "server/base/strings.h"
#include "tests/engine/model/model_directory.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string LengthBytes(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string FileBytes(const std::string& header, const std::string& data) {
  return LengthBytes(header.size()) + header + data;
}

template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}

class Safetensors : public ::testing::Test {
 protected:
  absl::StatusOr<SafetensorsFile> OpenBytes(const std::string& bytes) {
    return SafetensorsFile::Open(folder_.Write("t.safetensors", bytes));
  }
  absl::StatusOr<SafetensorsFile> OpenParts(const std::string& header, const std::string& data) {
    return OpenBytes(FileBytes(header, data));
  }
  // Every error names the file.
  void ExpectRefused(const std::string& bytes, const std::string& message) {
    EXPECT_THAT(OpenBytes(bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("t.safetensors"), HasSubstr(message))))
        << bytes.substr(0, 200);
  }

  TemporaryFolder folder_;
};

TEST_F(Safetensors, ReadsWhatItWrites) {
  const Tensors tensors = {
      {"f64", at::rand({2, 3}, at::kDouble)},       {"f32", at::rand({5})},       {"f16", at::rand({3}).to(at::kHalf)},
      {"bf16", at::rand({3, 1}).to(at::kBFloat16)}, {"i64", at::arange(4)},       {"u8", at::arange(3, at::kByte)},
      {"scalar", at::scalar_tensor(7.5)},           {"empty", at::empty({0, 4})}, {"transposed", at::rand({3, 2}).t()}};
  const std::string path = folder_.File("w.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, tensors, {{"format", "pt"}, {"quote", "\"\n"}}).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->entries().size(), tensors.size());
  EXPECT_THAT(file->metadata(), ElementsAre(Pair("format", "pt"), Pair("quote", "\"\n")));
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    const absl::StatusOr<at::Tensor> read = file->Read(name);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(*read, tensor));
    EXPECT_EQ(file->entries().at(name).begin % tensor.element_size(), 0u);
  }
  EXPECT_EQ(file->header().size() % 8, 0u);
}

TEST_F(Safetensors, WritesInOneStepAndLeavesNothingBehindOnFailure) {
  const std::string path = folder_.File("w.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, {{"a", at::ones({2})}}, {}).ok());
  const std::string before = ReadFile(path).value();
  EXPECT_THAT(WriteSafetensors(path, {{"a", at::ones({2}).to(at::kBool)}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a")));
  EXPECT_THAT(WriteSafetensors(path, {{"__metadata__", at::ones({2})}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("__metadata__")));
  EXPECT_THAT(WriteSafetensors(path, {{"a", at::Tensor()}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a")));
  EXPECT_THAT(WriteSafetensors(path, {}, {{"note", "\xff"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  EXPECT_THAT(WriteSafetensors(folder_.File("none/w"), {}, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_EQ(ReadFile(path).value(), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(Safetensors, NamesAMissingFileAndAMissingTensor) {
  EXPECT_THAT(SafetensorsFile::Open(folder_.File("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(SafetensorsFile::Open(folder_.path()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular")));
  ASSERT_EQ(mkfifo(folder_.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(folder_.File("pipe")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular")));
  const absl::StatusOr<SafetensorsFile> file = OpenParts("{}", "");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->Read("x"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("x")));
}

// L09
TEST_F(Safetensors, ChecksTheHeaderLengthBeforeItTrustsIt) {
  ExpectRefused("", "too small");
  ExpectRefused("abc", "too small");
  ExpectRefused("1234567", "too small");
  for (const uint64_t length : {uint64_t{1} << 63, std::numeric_limits<uint64_t>::max(), uint64_t{100'000'001}}) {
    ExpectRefused(LengthBytes(length) + "{}", "above the limit");
  }
  for (const uint64_t length : {3, 11, 100'000'000}) ExpectRefused(LengthBytes(length) + "{}", "past the end");
  ExpectRefused(LengthBytes(0), "JSON");
  ExpectRefused(LengthBytes(0) + "{}", "JSON");
}

TEST_F(Safetensors, SurvivesADeeplyNestedHeader) {
  const std::string arrays(100000, '['), objects = [] {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "{\"a\":";
    return text;
  }();
  ExpectRefused(FileBytes(arrays, ""), "the header");
  ExpectRefused(FileBytes(objects, ""), "tensor a");
  ExpectRefused(FileBytes("{\"a\":{\"shape\":" + arrays, ""), "tensor a");
  ExpectRefused(FileBytes("{\"__metadata__\":{\"a\":" + objects, ""), "__metadata__");
}

TEST_F(Safetensors, RefusesAHeaderOfAnotherForm) {
  const std::string good = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  for (const char* header : {"null",
                             "[]",
                             "1",
                             "\"a\"",
                             "{",
                             "}",
                             "{\"a\"}",
                             "{\"a\":1}",
                             "{\"a\":null}",
                             "{\"a\":true}",
                             "{\"a\":\"x\"}",
                             "{\"a\":[]}",
                             "{\"a\":{}}",
                             R"({"a":{"dtype":"U8"}})",
                             R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})",
                             R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})",
                             R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})",
                             R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})",
                             R"({"a":{"dtype":"U8","shape":[1],"data_offsets":{}}})",
                             R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})",
                             R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                             R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})"}) {
    ExpectRefused(FileBytes(header, "x"), "");
  }
  ExpectRefused(FileBytes("{\"a\":{" + good + "},\"a\":{" + good + "}}", "x"), "tensor a is listed twice");
  ExpectRefused(FileBytes("{\"a\":{" + good + "}}{}", "x"), "JSON");
  EXPECT_TRUE(OpenParts("{\"a\":{" + good + "}}", "x").ok());
}

TEST_F(Safetensors, NamesAnUnknownDtype) {
  ExpectRefused(FileBytes(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "abcd"), "\"F31\"");
  const absl::StatusOr<SafetensorsFile> file =
      OpenParts(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", "abcd");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->Read("a"),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("a"), HasSubstr("F8_E4M3"))));
}

// L11
TEST_F(Safetensors, ChecksOffsetsAgainstShapeAndFile) {
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string data = "abcd";
  EXPECT_TRUE(OpenParts(entry("[1]", "[0,4]"), data).ok());
  ExpectRefused(FileBytes(entry("[1000,1000]", "[0,4]"), data), "tensor a");
  ExpectRefused(FileBytes(entry("[1000,1000]", "[0,4000000]"), data), "truncated");
  ExpectRefused(FileBytes(entry("[1]", "[4,0]"), data), "tensor a");
  ExpectRefused(FileBytes(entry("[4611686018427387904,8]", "[0,0]"), ""), "overflows");
  ExpectRefused(FileBytes(entry("[4294967296,4294967296]", "[0,0]"), ""), "overflows");
  ExpectRefused(FileBytes(entry("[4294967296,1073741824]", "[0,0]"), ""), "overflows");
  ExpectRefused(FileBytes(entry("[-1]", "[0,4]"), data), "negative");
  ExpectRefused(FileBytes(entry("[1]", "[-4,0]"), data), "negative");
  ExpectRefused(FileBytes(entry("[1.0]", "[0,4]"), data), "integer");
  ExpectRefused(FileBytes(entry("[1]", "[0.0,4]"), data), "integer");
  ExpectRefused(FileBytes(entry("[1]", "[0,4,4]"), data), "data_offsets");
  ExpectRefused(FileBytes(entry("[1]", "[0,18446744073709551615]"), data), "2^63");
  ExpectRefused(FileBytes(entry("[1]", "[0,99999999999999999999]"), data), "tensor a");
  ExpectRefused(FileBytes(entry("[1]", "[0,4]"), "abc"), "truncated");
  ExpectRefused(FileBytes(entry("[1]", "[0,4]"), "abcd12345678"), "8 bytes of data belong to no tensor");
  std::string many = "[1";
  for (int i = 0; i < 40; ++i) many += ",1";
  ExpectRefused(FileBytes(entry(many + "]", "[0,4]"), data), "dimensions");
}

TEST_F(Safetensors, RefusesOverlapsAndHoles) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_TRUE(OpenParts(two("[0,4]", "[4,8]"), "abcdefgh").ok());
  ExpectRefused(FileBytes(two("[0,4]", "[0,4]"), "abcd"), "overlaps");
  ExpectRefused(FileBytes(two("[0,4]", "[2,6]"), "abcdef"), "overlaps");
  ExpectRefused(FileBytes(two("[0,4]", "[5,9]"), "abcdefghi"), "hole before tensor b");
  ExpectRefused(FileBytes(two("[1,5]", "[5,9]"), "abcdefghi"), "hole before tensor a");
}

TEST_F(Safetensors, SaysThatAFileWasTruncatedWhileItWasOpen) {
  const std::string path = folder_.File("t.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, {{"a", at::ones({1 << 16})}, {"b", at::ones({1 << 16})}}, {}).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, (1 << 18) + 4096);
  EXPECT_TRUE(at::equal(file->Read("a").value(), at::ones({1 << 16})));
  EXPECT_THAT(file->Read("b"), StatusIs(absl::StatusCode::kDataLoss,
                                        AllOf(HasSubstr("tensor b"), HasSubstr("t.safetensors became shorter"))));
}

// L13
TEST_F(Safetensors, ReadsDataThatIsNotAligned) {
  const std::string header = R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
                             R"("d":{"dtype":"F64","shape":[1],"data_offsets":[9,17]}})";
  for (const char* padding : {"", " ", "  ", "   "}) {
    const absl::StatusOr<SafetensorsFile> file =
        OpenParts(header + padding, StrCat("u", Bytes<float>({1.5f, -2.5f}), Bytes<double>({0.1})));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(at::equal(file->Read("f").value(), at::tensor({1.5f, -2.5f})));
    EXPECT_EQ(file->Read("d")->item<double>(), 0.1);
  }
}

TEST_F(Safetensors, ReadsTensorsListedInAnotherOrderThanTheyLie) {
  const absl::StatusOr<SafetensorsFile> file = OpenParts(R"({"z":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                                         R"("a":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})",
                                                         StrCat("zzzz", Bytes<float>({3.0f})));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Read("a")->item<float>(), 3.0f);
  std::string bytes(2, ' ');
  ASSERT_TRUE(file->ReadBytes(file->entries().at("z"), 2, bytes).ok());
  EXPECT_EQ(bytes, "zz");
}

// L14
TEST_F(Safetensors, AcceptsTheFormsOfMetadataThatTheFormatAllows) {
  for (const char* header : {"{}", "{\"__metadata__\":{}}", "{\"__metadata__\":null}", " {}", "{} \n "}) {
    const absl::StatusOr<SafetensorsFile> file = OpenParts(header, "");
    ASSERT_TRUE(file.ok()) << header << file.status();
    EXPECT_THAT(file->entries(), IsEmpty());
    EXPECT_THAT(file->metadata(), IsEmpty());
  }
  for (const char* metadata :
       {R"({"x":1})", R"({"x":null})", R"({"x":{}})", R"({"x":["y"]})", R"("x")", "1", "[]", R"({"x":"1","x":"2"})"}) {
    ExpectRefused(FileBytes(std::string("{\"__metadata__\":") + metadata + "}", ""), "__metadata__");
  }
  ExpectRefused(FileBytes("{\"__metadata__\":{},\"__metadata__\":{}}", ""), "twice");
  ExpectRefused(FileBytes(std::string("{}\0", 3), ""), "NUL");
  ExpectRefused(FileBytes("\xEF\xBB\xBF{}", ""), "byte order mark");
  ExpectRefused(FileBytes("{\"__metadata__\":{\"x\":\"\xff\"}}", ""), "JSON");
}

}  // namespace
}  // namespace gatehouse::testing
