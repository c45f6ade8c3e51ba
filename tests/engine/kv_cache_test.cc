#include "server/engine/model/kv_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/engine/test_models.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::StatusIs;
using ::testing::HasSubstr;

ModelConfig Shape() {
  ModelConfig config;
  config.layers = 2;
  config.kv_heads = 3;
  config.head_dim = 8;
  config.context = 300;
  return config;
}

constexpr int64_t kPageBytes = int64_t{2} * 2 * 3 * 8 * KvCache::kPageTokens * 4;

std::unique_ptr<KvCache> MakeCache(int pages) {
  return KvCache::Create(Shape(), at::kFloat, at::kCPU, pages * kPageBytes + kPageBytes / 2).value();
}

TEST(KvCache, HoldsAsManyPagesAsTheMemoryAllows) {
  const auto cache = MakeCache(4);
  EXPECT_EQ(cache->usage().pages_total, 4);
  EXPECT_EQ(cache->usage().page_bytes, kPageBytes);
  EXPECT_EQ(cache->usage().page_tokens, KvCache::kPageTokens);
  EXPECT_EQ(cache->layer(1).keys.sizes().vec(), (std::vector<int64_t>{4, 3, KvCache::kPageTokens, 8}));
  EXPECT_THAT(KvCache::Create(Shape(), at::kFloat, at::kCPU, kPageBytes - 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kv_bytes")));
}

TEST(KvCache, ReservesPagesAtOpeningAndRefusesWhatHasNoRoom) {
  const auto cache = MakeCache(4);
  const SequenceId first = cache->Open(KvCache::kPageTokens + 1).value();
  EXPECT_EQ(cache->usage().pages_used, 2);
  const SequenceId second = cache->Open(2 * KvCache::kPageTokens).value();
  EXPECT_EQ(cache->usage().pages_used, 4);
  EXPECT_THAT(cache->Open(1).status(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("pages free")));

  std::set<int32_t> pages;
  for (const SequenceId id : {first, second}) {
    const KvCache::View view = cache->Find(id).value();
    pages.insert(view.pages.begin(), view.pages.end());
  }
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3}));

  cache->Close(first);
  EXPECT_EQ(cache->usage().pages_used, 2);
  EXPECT_TRUE(cache->Open(KvCache::kPageTokens).ok());
  EXPECT_TRUE(cache->Open(1).ok());
  EXPECT_THAT(cache->Open(1).status(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("pages free")));
}

TEST(KvCache, RefusesWhatNeverHasRoom) {
  const auto cache = MakeCache(4);
  for (const int bad : {0, -1, 301, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    EXPECT_THAT(cache->Open(bad).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1, 300]"))) << bad;
  }
  EXPECT_THAT(cache->Open(4 * KvCache::kPageTokens + 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds at most")));
}

TEST(KvCache, AnswersAStaleOrInventedIdWithAnError) {
  const auto cache = MakeCache(4);
  const SequenceId stale = cache->Open(10).value();
  cache->Close(stale);
  const SequenceId fresh = cache->Open(10).value();  // takes the same slot
  EXPECT_NE(stale, fresh);
  for (const SequenceId bad : {stale, SequenceId{0}, static_cast<SequenceId>(~uint64_t{0})}) {
    EXPECT_THAT(cache->Find(bad).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not open")));
    EXPECT_THAT(cache->Rollback(bad, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not open")));
    EXPECT_EQ(cache->Length(bad), 0);
    cache->Close(bad);
  }
  EXPECT_EQ(cache->usage().pages_used, 1);
  EXPECT_TRUE(cache->Find(fresh).ok());
}

TEST(KvCache, RollsBackToAnyEarlierLength) {
  const auto cache = MakeCache(4);
  const SequenceId id = cache->Open(40).value();
  cache->SetLength(id, 33);
  for (const int bad : {-1, 34}) {
    EXPECT_THAT(cache->Rollback(id, bad), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 33]")));
  }
  EXPECT_TRUE(cache->Rollback(id, 33).ok());
  EXPECT_TRUE(cache->Rollback(id, 5).ok());
  EXPECT_EQ(cache->Length(id), 5);
  EXPECT_EQ(cache->usage().pages_used, 2);
}

}  // namespace
}  // namespace gatehouse
