#include "server/page/outbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace gatehouse {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(Outbox, HandsOnWhatWaitsInOrderAndThenTheEnd) {
  Outbox outbox(1000);
  EXPECT_TRUE(outbox.Put("a\n"));
  EXPECT_TRUE(outbox.Put("b\n"));
  auto taken = outbox.Take(kLong);
  EXPECT_EQ(taken.lines, "a\nb\n");
  EXPECT_FALSE(taken.ended);
  outbox.End();
  taken = outbox.Take(kLong);
  EXPECT_EQ(taken.lines, "");
  EXPECT_TRUE(taken.ended);
}

TEST(Outbox, IsEmptyAfterThePatienceIsOver) {
  Outbox outbox(1000);
  const auto taken = outbox.Take(absl::Milliseconds(1));
  EXPECT_EQ(taken.lines, "");
  EXPECT_FALSE(taken.ended);
}

TEST(Outbox, HoldsNoMoreThanItsLimitAndALine) {
  Outbox outbox(10);
  std::atomic<int> put = 0;
  std::thread writer([&] {
    for (int i = 0; i < 100; ++i) {
      if (outbox.Put("12345\n")) ++put;
    }
    outbox.End();
  });
  size_t read = 0;
  while (true) {
    const auto taken = outbox.Take(kLong);
    EXPECT_LE(taken.lines.size(), 15u);
    read += taken.lines.size();
    if (taken.ended && taken.lines.empty()) break;
  }
  writer.join();
  EXPECT_EQ(put, 100);
  EXPECT_EQ(read, 600u);
}

TEST(Outbox, LetsTheWriterGoWhenNobodyReads) {
  Outbox outbox(1);
  EXPECT_TRUE(outbox.Put("a"));
  bool taken = true;
  std::thread writer([&] { taken = outbox.Put("b"); });
  outbox.Close();
  writer.join();
  EXPECT_FALSE(taken);
}

}  // namespace
}  // namespace gatehouse
