#include "server/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

BpeOptions AbcOptions() {
  return {.vocab = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"abc", 5}},
          .merges = {{"b", "c"}, {"a", "b"}}};
}

Ids Encode(const BpeOptions& options, std::string_view piece) {
  const auto bpe = Bpe::Create(options);
  EXPECT_TRUE(bpe.ok()) << bpe.status();
  Bpe::Scratch scratch;
  Ids ids;
  if (bpe.ok()) bpe->Encode(piece, scratch, ids);
  return ids;
}

TEST(Bpe, MergesTheLowestRankFirstNotTheLongest) {
  EXPECT_THAT(Encode(AbcOptions(), "abc"), ElementsAre(0, 4));
  EXPECT_THAT(Encode(AbcOptions(), "abcabc"), ElementsAre(0, 4, 0, 4));
  EXPECT_THAT(Encode(AbcOptions(), "ab"), ElementsAre(3));
}

TEST(Bpe, LooksUpTheWholePieceFirstWhereMergesAreIgnored) {
  BpeOptions options = AbcOptions();
  options.ignore_merges = true;
  EXPECT_THAT(Encode(options, "abc"), ElementsAre(5));
  EXPECT_THAT(Encode(options, "abcabc"), ElementsAre(0, 4, 0, 4));
}

TEST(Bpe, MergesEqualRanksFromTheLeft) {
  const BpeOptions options = {.vocab = {{"a", 0}, {"aa", 1}}, .merges = {{"a", "a"}}};
  EXPECT_THAT(Encode(options, "aaa"), ElementsAre(1, 0));
  EXPECT_THAT(Encode(options, "aaaaa"), ElementsAre(1, 1, 0));
}

TEST(Bpe, LetsTheLaterOfTwoEqualMergesCount) {
  BpeOptions options = AbcOptions();
  options.merges = {{"a", "b"}, {"b", "c"}, {"a", "b"}};
  EXPECT_THAT(Encode(options, "abc"), ElementsAre(0, 4));
}

TEST(Bpe, DropsBytesWithoutATokenUnlessThereIsAnUnknownToken) {
  BpeOptions options = {.vocab = {{"a", 0}, {"b", 1}, {"<unk>", 2}, {"ab", 3}}, .merges = {{"a", "b"}}};
  EXPECT_THAT(Encode(options, "ac"), ElementsAre(0));
  EXPECT_THAT(Encode(options, "acb"), ElementsAre(3));
  EXPECT_THAT(Encode(options, "cc"), IsEmpty());
  options.unk_token = "<unk>";
  EXPECT_THAT(Encode(options, "acb"), ElementsAre(0, 2, 1));
  EXPECT_THAT(Encode(options, "ccab::"), ElementsAre(2, 2, 3, 2, 2));
  options.fuse_unk = true;
  EXPECT_THAT(Encode(options, "ccab::"), ElementsAre(2, 3, 2));
  options.unk_token = "<none>";
  EXPECT_THAT(Bpe::Create(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model.unk_token")));
}

TEST(Bpe, RefusesMergesOfTokensThatTheVocabularyLacks) {
  for (const auto& merge : {std::pair("a", "x"), std::pair("x", "a"), std::pair("c", "a")}) {
    BpeOptions options = AbcOptions();
    options.merges.emplace_back(merge);
    EXPECT_THAT(Bpe::Create(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model.merges[2]")));
  }
}

// The definition, in quadratic time.
Ids MergeOneByOne(const BpeOptions& options, std::string_view piece) {
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = options.merges.size();
    size_t best_at = 0;
    for (size_t at = 0; at + 1 < symbols.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (options.merges[rank] == std::pair(symbols[at], symbols[at + 1])) {
          best_rank = rank;
          best_at = at;
        }
      }
    }
    if (best_rank == options.merges.size()) break;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) {
    for (const auto& [spelling, id] : options.vocab) {
      if (spelling == symbol) ids.push_back(id);
    }
  }
  return ids;
}

TEST(Bpe, AgreesWithTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    BpeOptions options = {.vocab = {{"a", 0}, {"b", 1}, {"c", 2}}, .merges = {}};
    while (options.vocab.size() < 25) {
      const std::string left = options.vocab[random() % options.vocab.size()].first;
      const std::string right = options.vocab[random() % options.vocab.size()].first;
      const auto is_merged = [&](const auto& entry) { return entry.first == left + right; };
      if (std::any_of(options.vocab.begin(), options.vocab.end(), is_merged)) continue;
      options.merges.emplace_back(left, right);
      options.vocab.emplace_back(left + right, static_cast<int32_t>(options.vocab.size()));
    }
    std::shuffle(options.merges.begin(), options.merges.end(), random);
    std::string piece;
    for (int i = 0; i < 60; ++i) piece += static_cast<char>('a' + random() % 3);
    EXPECT_EQ(Encode(options, piece), MergeOneByOne(options, piece)) << piece;
  }
}

}  // namespace
}  // namespace gatehouse
