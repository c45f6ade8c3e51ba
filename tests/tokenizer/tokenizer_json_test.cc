#include "server/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "server/tokenizer/tokenizer.h"
#include "tests/support/status_matchers.h"
#include "tests/tokenizer/test_tokenizers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::AddedTokenJson;
using ::gatehouse::testing::Encode;
using ::gatehouse::testing::Json;
using ::gatehouse::testing::MakeTokenizerJson;
using ::gatehouse::testing::Parse;
using ::gatehouse::testing::ReadRepositoryFile;
using ::gatehouse::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json Abc() { return MakeTokenizerJson({"a", "b", "c", "ab"}, {{"a", "b"}}); }

void ExpectRefused(const Json& file, const std::string& named) {
  EXPECT_THAT(Tokenizer::Parse(file.dump()), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(named))) << named;
}

TEST(TokenizerJson, RefusesEverySettingItDoesNotFollowByName) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"/version", R"("2.0")", "version"},
      {"/truncation", R"({"max_length": 8})", "truncation"},
      {"/padding", R"({"strategy": "BatchLongest"})", "padding"},
      {"/post_tokenizer", "null", "post_tokenizer"},
      {"/normalizer", R"({"type": "NFKC"})", R"(normalizer.type "NFKC" is not supported)"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})",
       R"(normalizer.normalizers[1].type "Lowercase" is not supported)"},
      {"/pre_tokenizer", "null", "pre_tokenizer"},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", R"(pre_tokenizer.type "Metaspace" is not supported)"},
      {"/pre_tokenizer", R"({"type": "Digits", "individual_digits": true})", "ByteLevel"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": []})", "ByteLevel"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false},
           {"type": "Digits", "individual_digits": true}]})",
       R"(pre_tokenizer.pretokenizers[1].type "Digits" after "ByteLevel" is not supported)"},
      {"/pre_tokenizer/add_prefix_space", R"("no")", "pre_tokenizer.add_prefix_space"},
      {"/pre_tokenizer/use_regex", "1", "pre_tokenizer.use_regex"},
      {"/pre_tokenizer/pattern", "{}", "pre_tokenizer.pattern"},
      {"/post_processor", R"({"type": "BertProcessing"})", R"(post_processor.type "BertProcessing" is not supported)"},
      {"/decoder", "null", "decoder"},
      {"/decoder", R"({"type": "WordPiece"})", R"(decoder.type "WordPiece" is not supported)"},
      {"/model/type", R"("Unigram")", R"(model.type "Unigram" is not supported)"},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/continuing_subword_prefix", R"("##")", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/ignore_merges", R"("yes")", "model.ignore_merges"},
      {"/model/unk_token", R"("?")", "model.unk_token"},
      {"/model/other", "1", "model.other"},
  };
  for (const auto& [pointer, value, named] : cases) {
    Json file = Abc();
    file[Json::json_pointer(pointer)] = Json::parse(value);
    ExpectRefused(file, named);
  }
}

TEST(TokenizerJson, TakesAbsentFieldsForTheirDefaults) {
  Json file = Abc();
  for (const char* key : {"version", "truncation", "padding", "added_tokens", "normalizer", "post_processor"}) {
    file.erase(key);
  }
  for (const char* key : {"type", "dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"}) {
    file["model"].erase(key);
  }
  EXPECT_THAT(Encode(*Parse(file), "abc"), ElementsAre(3, 2));
}

TEST(TokenizerJson, ReadsMergesAsStringsAndAsPairs) {
  Json file = Abc();
  file["model"]["merges"] = {"#version: 0.2", "a b"};
  EXPECT_THAT(Encode(*Parse(file), "abc"), ElementsAre(3, 2));
  for (const char* merges : {R"(["ab"])", R"(["a b c"])", R"([["a"]])", R"([["a", "b", "c"]])", R"([["a", 1]])",
                             R"([1])", R"([["a", "b"], "a b"])", R"(["a b", ["a", "b"]])"}) {
    file["model"]["merges"] = Json::parse(merges);
    ExpectRefused(file, "model.merges[");
  }
  file["model"]["merges"] = "a b";
  ExpectRefused(file, "model.merges");
}

TEST(TokenizerJson, RefusesAMergeOfAnUnknownToken) {
  Json file = Abc();
  file["model"]["merges"].push_back({"b", "c"});
  ExpectRefused(file, R"(model.merges[1] needs the token "bc")");
}

TEST(TokenizerJson, RefusesIdsOutOfRangeAndIdsOfTwoTokens) {
  for (const char* id : {"-1", "4194304", "4294967296", "18446744073709551615", "1e30", "1.0", "\"1\"", "null"}) {
    Json file = Abc();
    file["model"]["vocab"]["b"] = Json::parse(id);
    ExpectRefused(file, R"(model.vocab["b"])");
  }
  Json file = Abc();
  file["model"]["vocab"]["b"] = 0;
  ExpectRefused(file, "gives the id 0 to both");
  file["model"]["vocab"] = Json::object();
  ExpectRefused(file, "model.vocab is empty");
}

TEST(TokenizerJson, RefusesAddedTokensWhoseIdsTheReferenceWouldChange) {
  const std::pair<int, const char*> cases[] = {{5, "<s>"}, {1, "<s>"}, {2, "a"}};
  for (const auto& [id, content] : cases) {
    Json file = Abc();
    file["added_tokens"] = Json::array({AddedTokenJson(id, content)});
    ExpectRefused(file, "added_tokens[0].id");
  }
  Json file = Abc();
  file["added_tokens"] = Json::array({AddedTokenJson(1, "b"), AddedTokenJson(4, "<s>"), AddedTokenJson(5, "<t>")});
  EXPECT_THAT(Encode(*Parse(file), "<t>b<s>"), ElementsAre(5, 1, 4));
  file["added_tokens"].push_back(AddedTokenJson(4, "<s>"));
  ExpectRefused(file, "added_tokens[3].content");
}

// The reference finds either of the two, by chance.
TEST(TokenizerJson, RefusesTwoTokensThatTheNormalizerMakesEqual) {
  Json file = Abc();
  file["added_tokens"] = Json::array({AddedTokenJson(4, "\xC3\xA9"), AddedTokenJson(5, "e\xCC\x81")});
  for (Json& token : file["added_tokens"]) token["normalized"] = true;
  EXPECT_NE(Parse(file), nullptr);
  file["normalizer"] = {{"type", "NFC"}};
  ExpectRefused(file, "added_tokens[1].content");
  file["added_tokens"][0]["normalized"] = false;
  EXPECT_NE(Parse(file), nullptr);
}

TEST(TokenizerJson, RefusesDamagedAddedTokens) {
  for (const char* key : {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}) {
    Json file = Abc();
    file["added_tokens"] = Json::array({AddedTokenJson(4, "<s>")});
    file["added_tokens"][0].erase(key);
    ExpectRefused(file, std::string("added_tokens[0].") + key);
    file["added_tokens"][0][key] = Json::array();
    ExpectRefused(file, std::string("added_tokens[0].") + key);
  }
  for (const size_t length : {0, 1025}) {
    Json file = Abc();
    file["added_tokens"] = Json::array({AddedTokenJson(4, std::string(length, 'x'))});
    ExpectRefused(file, "added_tokens[0].content");
  }
}

TEST(TokenizerJson, RefusesTemplatesItCannotFollow) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "without the sequence"},
      {R"([{"Sequence": {"id": "B"}}])", "single[0]"},
      {R"([{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}])", "single[1]"},
      {R"([{"Other": 1}, {"Sequence": {"id": "A"}}])", "Other"},
      {R"([{"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}])", "special_tokens.<x>"},
      {R"([{"SpecialToken": {"id": "<far>"}}, {"Sequence": {"id": "A"}}])", "which is no token's id"},
      {R"([{"SpecialToken": {"id": "<bad>"}}, {"Sequence": {"id": "A"}}])", "special_tokens.<bad>.ids"},
  };
  for (const auto& [single, named] : cases) {
    Json file = Abc();
    file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::parse(single)}, {"pair", nullptr}};
    file["post_processor"]["special_tokens"] = {{"<far>", {{"ids", {99}}}}, {"<bad>", {{"ids", {-1}}}}};
    ExpectRefused(file, named);
  }
}

TEST(TokenizerJson, RefusesWhatIsNotJson) {
  const std::string file = Abc().dump();
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("nul"), file.substr(0, file.size() - 1), file + "x",
        std::string("\xFF"), std::string("{\"version\": \"\\ud800\"}"), std::string(file.size(), '\0')}) {
    EXPECT_THAT(Tokenizer::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("JSON")));
  }
  for (const char* text : {"[]", "null", "1", "\"text\""}) {
    EXPECT_THAT(Tokenizer::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("object")));
  }
}

TEST(TokenizerJson, RefusesDeepNestingWithoutRecursion) {
  constexpr size_t kDepth = 1'000'000;
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    for (size_t i = 0; i < kDepth; ++i) text += open;
    EXPECT_THAT(Tokenizer::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nested")));
  }
  // Brackets within strings do not nest.
  Json file = MakeTokenizerJson({"a", std::string(100, '['), "\"[\\"});
  EXPECT_NE(Parse(file), nullptr);
}

TEST(TokenizerJson, KeepsMessagesShortWhateverTheFileHolds) {
  Json file = Abc();
  const std::string huge(100'000, 'x');
  file[huge] = 1;
  const auto tokenizer = Tokenizer::Parse(file.dump());
  EXPECT_THAT(tokenizer, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("xxx")));
  EXPECT_LT(tokenizer.status().message().size(), 200u);
}

TEST(TokenizerJson, NamesTheFileThatIsMissingOrDamaged) {
  EXPECT_THAT(Tokenizer::Load("/nonexistent/tokenizer.json"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/tokenizer.json")));
  const std::string path = ::testing::TempDir() + "/damaged_tokenizer.json";
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fclose(file);
  EXPECT_THAT(Tokenizer::Load(path),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(path), HasSubstr("JSON"))));
}

// All values in the document, in order.
void CollectValues(Json& value, std::vector<Json*>& values) {
  values.push_back(&value);
  if (value.is_structured()) {
    for (Json& child : value) CollectValues(child, values);
  }
}

// A file with a little of everything, small enough to be mutated often.
Json RichJson() {
  Json file = Abc();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  const Json byte_level = file["pre_tokenizer"];
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  file["added_tokens"] = Json::array({AddedTokenJson(4, "<s>", true), AddedTokenJson(5, "  ")});
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                            {"pair", nullptr},
                            {"special_tokens", {{"<s>", {{"ids", {4}}}}}}};
  return file;
}

// Must not crash; where the file is taken, nor must its use.
bool IsTaken(const std::string& file) {
  const auto tokenizer = Tokenizer::Parse(file);
  if (!tokenizer.ok()) {
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << tokenizer.status();
    return false;
  }
  const auto ids = (*tokenizer)->Encode("<s>  abc a1 \xC3\xA9");
  if (ids.ok()) (*tokenizer)->DecodeBytes(*ids);
  for (int32_t id = -1; id <= (*tokenizer)->vocab_size() && id < 10; ++id) (*tokenizer)->TokenBytes(id);
  return true;
}

TEST(TokenizerJson, SurvivesReplacedValues) {
  const Json replacements[] = {nullptr,
                               true,
                               0,
                               -1,
                               4,
                               1e300,
                               4194303,
                               UINT64_MAX,
                               "",
                               "a",
                               "Sequence",
                               "\xF0\x9F\x98\x80",
                               Json::array(),
                               Json::object(),
                               Json::array({1, "a"}),
                               {{"type", "Sequence"}}};
  const Json original = RichJson();
  ASSERT_TRUE(IsTaken(original.dump()));
  Json counted = original;
  std::vector<Json*> values;
  CollectValues(counted, values);
  int taken = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    for (const Json& replacement : replacements) {
      Json file = original;
      std::vector<Json*> targets;
      CollectValues(file, targets);
      *targets[i] = replacement;
      taken += IsTaken(file.dump());
    }
  }
  EXPECT_GT(taken, 0);
}

TEST(TokenizerJson, SurvivesRandomChangesOfItsBytes) {
  const std::string original = RichJson().dump();
  std::mt19937 random(42);
  const std::string alphabet = "{}[]\",:0123456789-e.\\ntfu <ab\x80\xC3\xFF";
  for (int round = 0; round < 4000; ++round) {
    std::string file = original;
    for (uint32_t change = 0; change <= random() % 3; ++change) {
      const size_t at = random() % file.size();
      switch (random() % 4) {
        case 0:
          file[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          file.erase(at, 1 + random() % 20);
          break;
        case 2:
          file.insert(at, file.substr(random() % file.size(), random() % 40));
          break;
        default:
          file.insert(at, 1, alphabet[random() % alphabet.size()]);
      }
      if (file.empty()) break;
    }
    IsTaken(file);
  }
}

}  // namespace
}  // namespace gatehouse
