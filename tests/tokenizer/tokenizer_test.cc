#include "server/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/tokenizer/test_tokenizers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AddedTokenJson;
using ::gatehouse::testing::Encode;
using ::gatehouse::testing::Ids;
using ::gatehouse::testing::Json;
using ::gatehouse::testing::MakeTokenizerJson;
using ::gatehouse::testing::Parse;
using ::gatehouse::testing::ReadRepositoryFile;
using ::gatehouse::testing::StatusIs;
using ::gatehouse::testing::Utf8;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Tokenizer::EncodeOptions kAsPlainText{.plain_text = true};

Json NovellaJson() { return Json::parse(ReadRepositoryFile("models/novella-gpt2-7m/tokenizer.json"), nullptr, false); }

Json BosTemplate(int id) {
  return Json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [)" +
                     std::to_string(id) + R"(], "tokens": ["<s>"]}}})");
}

TEST(Tokenizer, ReturnsTheTextOfWhatItEncodes) {
  const auto tokenizer = Parse(NovellaJson());
  const std::string texts[] = {"",
                               " ",
                               "Hello world",
                               "  a\n\n b\t",
                               std::string("\0\x01\x7F", 3),
                               Utf8(u8"\u00E9\u3042\U0001F600\u0301 \u00BD\uFFFD"),
                               "<|endoftext|>x",
                               "'s 'S"};
  for (const std::string& text : texts) {
    EXPECT_EQ(tokenizer->DecodeBytes(Encode(*tokenizer, text)), text);
    EXPECT_EQ(tokenizer->DecodeBytes(Encode(*tokenizer, text, kAsPlainText)), text);
  }
}

TEST(Tokenizer, LoadsBothEmbeddedModels) {
  for (const char* model : {"novella-gpt2-7m", "novella-neox-4m"}) {
    const Json file =
        Json::parse(ReadRepositoryFile(std::string("models/") + model + "/tokenizer.json"), nullptr, false);
    const auto tokenizer = Parse(file);
    EXPECT_EQ(tokenizer->vocab_size(), 4096);
    EXPECT_EQ(tokenizer->TokenId("<|endoftext|>"), 0);
  }
}

// No spelling of a special token in plain text becomes its id.
TEST(Tokenizer, KeepsSpecialTokensInPlainTextAsText) {
  const auto tokenizer = Parse(NovellaJson());
  EXPECT_THAT(Encode(*tokenizer, "<|endoftext|>"), ElementsAre(0));
  for (const char* text : {"<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endoftext"}) {
    const Ids ids = Encode(*tokenizer, text, kAsPlainText);
    EXPECT_THAT(ids, ::testing::Not(::testing::Contains(0))) << text;
    EXPECT_EQ(tokenizer->DecodeBytes(ids), text);
  }
}

TEST(Tokenizer, PutsTheTemplateOnceAroundEachText) {
  Json file = MakeTokenizerJson({"a", "b", "c", "ab", "bc", "abc"});
  file["added_tokens"] = Json::array({AddedTokenJson(6, "<s>", /*special=*/true)});
  file["post_processor"] = BosTemplate(6);
  const auto tokenizer = Parse(file);
  EXPECT_THAT(Encode(*tokenizer, "ab"), ElementsAre(6, 0, 1));
  // A text that brings its own BOS has two, as in the reference.
  EXPECT_THAT(Encode(*tokenizer, "<s>ab"), ElementsAre(6, 6, 0, 1));
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre(6));
  EXPECT_THAT(Encode(*tokenizer, "ab", {.add_special_tokens = false}), ElementsAre(0, 1));
  EXPECT_THAT(Encode(*tokenizer, "", {.add_special_tokens = false}), IsEmpty());
}

TEST(Tokenizer, PutsTheTemplatesOfASequenceOutsideOneAnother) {
  Json file = MakeTokenizerJson({"a", "b"});
  file["added_tokens"] = Json::array({AddedTokenJson(2, "<s>"), AddedTokenJson(3, "<t>")});
  file["post_processor"] = {{"type", "Sequence"}, {"processors", {BosTemplate(2), BosTemplate(3)}}};
  EXPECT_THAT(Encode(*Parse(file), "ab"), ElementsAre(3, 2, 0, 1));
}

TEST(Tokenizer, GivesNoBytesForIdsOutsideTheVocabulary) {
  Json file = MakeTokenizerJson({"A", "B"});
  file["model"]["vocab"]["C"] = 7;
  const auto tokenizer = Parse(file);
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  for (const int32_t id : {2, 6, 8, 50290, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->TokenBytes(id), "") << id;
    EXPECT_FALSE(tokenizer->IsSpecial(id)) << id;
  }
  EXPECT_EQ(tokenizer->DecodeBytes(Ids{0, 50290, 1, -1, 7}), "ABC");
}

// The bytes of a token need not be whole characters, and none is lost.
TEST(Tokenizer, GivesTheBytesOfATokenThatIsPartOfACharacter) {
  const auto tokenizer = Parse(NovellaJson());
  std::string bytes;
  for (const int32_t id : Encode(*tokenizer, Utf8(u8"\u6B6A\U0001F600\uFFFD"))) bytes += tokenizer->TokenBytes(id);
  EXPECT_EQ(bytes, Utf8(u8"\u6B6A\U0001F600\uFFFD"));
  // The alphabet of byte-level BPE: a character for each byte.
  const auto bytewise = Parse(MakeTokenizerJson({"!", Utf8(u8"\u0120"), Utf8(u8"\u00F0"), Utf8(u8"\u0142")}));
  EXPECT_EQ(bytewise->TokenBytes(1), " ");
  EXPECT_EQ(bytewise->TokenBytes(2), "\xF0");
  EXPECT_EQ(bytewise->TokenBytes(3), "\xA0");
}

TEST(Tokenizer, GivesAddedTokensTheirSpelling) {
  Json file = MakeTokenizerJson({"a"});
  file["added_tokens"] = Json::array({AddedTokenJson(1, "  "), AddedTokenJson(2, Utf8(u8"\u00E9"), true)});
  const auto tokenizer = Parse(file);
  EXPECT_EQ(tokenizer->TokenBytes(1), "  ");
  EXPECT_EQ(tokenizer->TokenBytes(2), Utf8(u8"\u00E9"));
  EXPECT_FALSE(tokenizer->IsSpecial(1));
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_EQ(tokenizer->TokenId(Utf8(u8"\u00E9")), 2);
  EXPECT_EQ(tokenizer->TokenId("b"), std::nullopt);
}

TEST(Tokenizer, LooksForNormalizedTokensAfterNfcAndForOthersBeforeIt) {
  Json file = MakeTokenizerJson({"e"});
  file["normalizer"] = {{"type", "NFC"}};
  Json raw = AddedTokenJson(1, Utf8(u8"e\u0301!"));
  Json normalized = AddedTokenJson(2, Utf8(u8"e\u0301"));
  normalized["normalized"] = true;
  file["added_tokens"] = Json::array({raw, normalized});
  const auto tokenizer = Parse(file);
  EXPECT_THAT(Encode(*tokenizer, Utf8(u8"\u00E9")), ElementsAre(2));
  EXPECT_THAT(Encode(*tokenizer, Utf8(u8"e\u0301")), ElementsAre(2));
  EXPECT_THAT(Encode(*tokenizer, Utf8(u8"e\u0301!")), ElementsAre(1));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = Parse(NovellaJson());
  for (const char* text : {"\xFF\xFE", "ab\xC3", "\xED\xA0\x80", "\xC0\x80"}) {
    EXPECT_THAT(tokenizer->Encode(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
  }
}

TEST(Tokenizer, EncodesOnManyThreadsAtOnce) {
  const auto tokenizer = Parse(NovellaJson());
  const std::string text = "Once upon a time there were 12 small   foxes, weren't there?";
  const Ids expected = Encode(*tokenizer, text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) ASSERT_EQ(Encode(*tokenizer, text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One pre-token of a megabyte.  Quadratic time would take hours.
TEST(Tokenizer, EncodesAHugePieceInReasonableTime) {
  const auto tokenizer = Parse(NovellaJson());
  constexpr size_t kLength = 1'000'000;
  for (const std::string unit : {"^", "a", "_", " ", "\n", "7", "ab"}) {
    std::string text;
    while (text.size() < kLength) text += unit;
    EXPECT_EQ(tokenizer->DecodeBytes(Encode(*tokenizer, text)), text);
  }
}

}  // namespace
}  // namespace gatehouse
