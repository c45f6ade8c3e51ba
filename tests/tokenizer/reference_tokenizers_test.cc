// The cases that users of other servers reported, with the real tokenizers of GPT-2 and
// GPT-NeoX, which are not part of the repository.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "server/base/files.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/tokenizer/test_tokenizers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::Encode;
using ::gatehouse::testing::Ids;
using ::gatehouse::testing::Json;
using ::gatehouse::testing::Utf8;
using ::testing::ElementsAre;

constexpr Tokenizer::EncodeOptions kPlain{.plain_text = true};

std::string DataFolder(const std::string& name) {
  const char* root = std::getenv("GATEHOUSE_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/../shared/data/" + name;
}

class ReferenceTokenizers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"gpt2-tokenizer", "gpt-neox-tokenizer"}) {
      const std::string path = DataFolder(name) + "/tokenizer.json";
      if (!std::filesystem::exists(path)) GTEST_SKIP() << "no file " << path;
    }
    static const auto* gpt2 = Tokenizer::Load(DataFolder("gpt2-tokenizer") + "/tokenizer.json")->release();
    static const auto* neox = Tokenizer::Load(DataFolder("gpt-neox-tokenizer") + "/tokenizer.json")->release();
    gpt2_ = gpt2;
    neox_ = neox;
  }

  Ids Gpt2(std::string_view text, const Tokenizer::EncodeOptions& options = {}) {
    return Encode(*gpt2_, text, options);
  }
  Ids Neox(std::string_view text, const Tokenizer::EncodeOptions& options = {}) {
    return Encode(*neox_, text, options);
  }

  const Tokenizer* gpt2_ = nullptr;
  const Tokenizer* neox_ = nullptr;
};

std::string Repeat(std::string_view unit, size_t times) {
  std::string text;
  text.reserve(unit.size() * times);
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

TEST_F(ReferenceTokenizers, T01KeepTheLastBlankWithTheNextWord) {
  EXPECT_THAT(Gpt2("  a"), ElementsAre(220, 257));
  EXPECT_THAT(Gpt2("def f():\n    return  x"), ElementsAre(4299, 277, 33529, 198, 220, 220, 220, 1441, 220, 2124));
  EXPECT_THAT(Neox(" \na"), ElementsAre(209, 187, 66));
}

TEST_F(ReferenceTokenizers, T02TakeNextLineForWhiteSpace) {
  EXPECT_THAT(Gpt2(Utf8(u8" \u0085a")), ElementsAre(220, 126, 227, 64));
  EXPECT_THAT(Neox(Utf8(u8" \u0085a")), ElementsAre(209, 16643, 66));
}

TEST_F(ReferenceTokenizers, T04CutContractionsAsGpt2Does) {
  EXPECT_THAT(Gpt2("'Sa"), ElementsAre(6, 33890));
  EXPECT_THAT(Gpt2("I'LL"), ElementsAre(40, 6, 3069));
  EXPECT_THAT(Gpt2(Utf8(u8"\u2019st")), ElementsAre(447, 247, 301));
  EXPECT_THAT(Neox("'Sa"), ElementsAre(8, 26116));
  EXPECT_THAT(Neox("I'LL"), ElementsAre(42, 8, 2293));
  EXPECT_THAT(Neox(Utf8(u8"\u2019st")), ElementsAre(457, 296));
}

TEST_F(ReferenceTokenizers, T06KnowLettersAndNumbersBeyondAscii) {
  EXPECT_THAT(Gpt2(Utf8(u8"\u00E9n")), ElementsAre(35942));
  EXPECT_THAT(Gpt2(Utf8(u8"x\u00B2\u00B3")), ElementsAre(87, 31185, 126, 111));
  EXPECT_THAT(Gpt2(Utf8(u8"4\u00BD")), ElementsAre(19, 23141));
  EXPECT_THAT(Gpt2(Utf8(u8"\u2167")), ElementsAre(158, 227, 100));
  EXPECT_THAT(Neox(Utf8(u8"\u00E9n")), ElementsAre(9390));
  EXPECT_THAT(Neox(Utf8(u8"x\u00B2\u00B3")), ElementsAre(89, 15818, 19281));
  EXPECT_THAT(Neox(Utf8(u8"4\u00BD")), ElementsAre(21, 8313));
  EXPECT_THAT(Neox(Utf8(u8"\u2167")), ElementsAre(158, 216, 102));
}

TEST_F(ReferenceTokenizers, T07MakeBlankRunsOfTheTokensAddedForThem) {
  const std::pair<int, Ids> cases[] = {{2, {50276}},         {24, {50254}},        {25, {50254, 209}},
                                       {26, {50254, 50276}}, {31, {50254, 50271}}, {49, {50254, 50254, 209}}};
  for (const auto& [blanks, ids] : cases) EXPECT_EQ(Neox(Repeat(" ", blanks)), ids) << blanks;
  EXPECT_THAT(Neox(Repeat(" ", 2) + "x"), ElementsAre(50276, 89));
  EXPECT_THAT(Neox(Repeat(" ", 24) + "x"), ElementsAre(50254, 89));
  EXPECT_THAT(Neox(Repeat(" ", 25) + "x"), ElementsAre(50254, 1269));
  EXPECT_THAT(Neox("Hello  World"), ElementsAre(12092, 50276, 14947));
}

TEST_F(ReferenceTokenizers, T07HaveExactlyTheKnownUnreachableIds) {
  std::vector<int32_t> unreachable;
  for (int32_t id = 0; id < neox_->vocab_size(); ++id) {
    const auto ids = neox_->Encode(neox_->TokenBytes(id));
    if (ids.ok() && *ids != Ids{id}) unreachable.push_back(id);
  }
  EXPECT_EQ(unreachable.size(), 221u);
  EXPECT_THAT(unreachable, ::testing::IsSupersetOf({245, 252, 286}));
}

TEST_F(ReferenceTokenizers, T09KeepSpecialTokensAsTextOnlyWhereAsked) {
  EXPECT_THAT(Gpt2("a<|endoftext|>b"), ElementsAre(64, 50256, 65));
  EXPECT_THAT(Neox("a<|endoftext|>b"), ElementsAre(66, 0, 67));
  EXPECT_THAT(Neox("<|padding|>x"), ElementsAre(1, 89));
  EXPECT_THAT(Gpt2("<|endoftext|"), ElementsAre(27, 91, 437, 1659, 5239, 91));
  EXPECT_THAT(Gpt2("a<|endoftext|>b", kPlain), ElementsAre(64, 27, 91, 437, 1659, 5239, 91, 29, 65));
  EXPECT_THAT(Neox("a<|endoftext|>b", kPlain), ElementsAre(66, 29, 93, 423, 1171, 1156, 49651, 67));
  EXPECT_THAT(Neox("x  y", kPlain), ElementsAre(89, 50276, 90));
}

TEST_F(ReferenceTokenizers, T12EncodeOneHugePieceWithoutQuadraticTime) {
  EXPECT_EQ(Gpt2(Repeat("^", 1'000'000)), Ids(250'000, 39397));
  EXPECT_EQ(Gpt2(Repeat("a", 1'000'000)), Ids(250'000, 24794));
  EXPECT_EQ(Gpt2(Repeat(" ", 100'000)), Ids(100'000, 220));
  EXPECT_EQ(Gpt2(Repeat(Utf8(u8"\u3042"), 50'000)), Ids(50'000, 40948));
  EXPECT_EQ(Neox(Repeat("^", 1'000'000)), Ids(250'000, 32264));
  EXPECT_EQ(Neox(Repeat("a", 1'000'000)), Ids(125'000, 49642));
  EXPECT_EQ(Neox(Repeat(Utf8(u8"\u3042"), 50'000)), Ids(50'000, 14010));
  const Ids underscores = Gpt2(Repeat("_", 50'000));
  EXPECT_EQ(underscores.size(), 782u);
  EXPECT_EQ(underscores.front(), 27193);
  EXPECT_EQ(underscores.back(), 4841);
  EXPECT_EQ(Neox(Repeat("_", 50'000)).size(), 1563u);
  const Ids blanks = Neox(Repeat(" ", 100'000));
  EXPECT_EQ(blanks.size(), 4167u);
  EXPECT_EQ(blanks.front(), 50254);
  EXPECT_EQ(blanks.back(), 50262);
}

TEST_F(ReferenceTokenizers, T14NeverCleanUpWhatTheyDecode) {
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{5633}), " ?");
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{87, 14512, 331}), "x != y");
  EXPECT_EQ(neox_->DecodeBytes(Ids{273, 686, 6209, 272, 1841}), " of 'sensing things");
}

TEST_F(ReferenceTokenizers, T16GiveNothingForPaddedRows) {
  EXPECT_EQ(neox_->vocab_size(), 50277);
  EXPECT_EQ(neox_->DecodeBytes(Ids{34, 50290, 35}), "AB");
  EXPECT_EQ(neox_->TokenBytes(50290), "");
  EXPECT_EQ(gpt2_->TokenBytes(50257), "");
}

TEST_F(ReferenceTokenizers, S01GiveTheBytesOfACharacterSplitOverTokens) {
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{29826, 103}), Utf8(u8"\u6B6A"));
  EXPECT_EQ(gpt2_->TokenBytes(47249), "\xF0\x9F\x98");
  EXPECT_EQ(gpt2_->TokenBytes(222), "\x80");
  EXPECT_EQ(neox_->DecodeBytes(Ids{14931, 235, 211}), Utf8(u8"\U0001F600"));
}

TEST_F(ReferenceTokenizers, S03GiveARealReplacementCharacterItsBytes) {
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{64, 4210, 65}), Utf8(u8"a\uFFFDb"));
  EXPECT_EQ(neox_->DecodeBytes(Ids{66, 21478, 67}), Utf8(u8"a\uFFFDb"));
}

TEST_F(ReferenceTokenizers, S04GiveTheBytesOfBrokenCharactersUnchanged) {
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{222, 222}), "\x80\x80");
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{158, 224, 32}),
            "\xE2\x82"
            "A");
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{169, 254, 222}), "\xED\xA0\x80");
  EXPECT_EQ(gpt2_->DecodeBytes(Ids{172, 253, 172, 253, 246, 222}), "\xF0\x9F\xF0\x9F\x98\x80");
}

// SmolLM2's cutting of digits, with GPT-2's vocabulary.
TEST_F(ReferenceTokenizers, CutSingleDigitsAsSmolLm2Does) {
  const auto bytes = ReadFile(DataFolder("gpt2-tokenizer") + "/tokenizer.json");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  Json file = Json::parse(*bytes, nullptr, false);
  const Json byte_level = file["pre_tokenizer"];
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  const auto tokenizer = ::gatehouse::testing::Parse(file);
  EXPECT_THAT(Encode(*tokenizer, "a  1"), ElementsAre(64, 220, 220, 16));
  EXPECT_THAT(Encode(*tokenizer, "2024"), ElementsAre(17, 15, 17, 19));
  EXPECT_THAT(Gpt2("a  1"), ElementsAre(64, 220, 352));
}

// llama.cpp's vectors: texts with a separator between them, and a line of ids for each.
void CheckVectors(const Tokenizer& tokenizer, const std::string& stem) {
  const auto inputs = ReadFile(stem + ".inp");
  const auto outputs = ReadFile(stem + ".out");
  if (!inputs.ok() || !outputs.ok()) GTEST_SKIP() << "no files " << stem << ".inp and .out";
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(*outputs);
  std::string_view rest = *inputs;
  int count = 0;
  for (bool more = true; more; ++count) {
    const size_t end = rest.find(separator);
    more = end != std::string_view::npos;
    const std::string_view text = rest.substr(0, end);
    std::string line;  // stays empty for the last text, which is
    std::getline(lines, line);
    std::istringstream numbers(line);
    EXPECT_EQ(Encode(tokenizer, text), Ids(std::istream_iterator<int32_t>(numbers), {})) << text;
    if (more) rest.remove_prefix(end + separator.size());
  }
  EXPECT_EQ(count, 47);
}

TEST_F(ReferenceTokenizers, ReproduceTheVectorsOfLlamaCpp) {
  CheckVectors(*gpt2_, DataFolder("gpt2-tokenizer") + "/ggml-vocab-gpt-2.gguf");
  CheckVectors(*neox_, DataFolder("gpt-neox-tokenizer") + "/ggml-vocab-mpt.gguf");
}

}  // namespace
}  // namespace gatehouse
