// What the reference makes of random texts, under every setting that is followed;
// tests/golden/make_tokenizer_fixtures.py wrote it down.
#include <gtest/gtest.h>

#include "tests/tokenizer/test_tokenizers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::Encode;
using ::gatehouse::testing::Ids;
using ::gatehouse::testing::Json;
using ::gatehouse::testing::ReadRepositoryFile;

TEST(TokenizerVectors, GiveTheReferencesTokensUnderEverySetting) {
  const Json vectors = Json::parse(ReadRepositoryFile("tests/data/tokenizer/vectors.json"), nullptr, false);
  const Json base = Json::parse(ReadRepositoryFile(vectors.value("base", "")), nullptr, false);
  ASSERT_GE(vectors["variants"].size(), 9u);
  for (const Json& variant : vectors["variants"]) {
    Json file = base;
    file.merge_patch(variant["patch"]);
    const auto tokenizer = ::gatehouse::testing::Parse(file);
    ASSERT_NE(tokenizer, nullptr) << variant["name"];
    ASSERT_GE(variant["ids"].size(), 80u);
    for (size_t i = 0; i < variant["ids"].size(); ++i) {
      const Tokenizer::EncodeOptions options{.plain_text = i % 2 == 1, .add_special_tokens = i % 4 < 2};
      EXPECT_EQ(Encode(*tokenizer, vectors["texts"][i].get<std::string>(), options), variant["ids"][i].get<Ids>())
          << variant["name"] << ": " << vectors["texts"][i].dump(-1, ' ', /*ensure_ascii=*/true);
    }
  }
}

}  // namespace
}  // namespace gatehouse
