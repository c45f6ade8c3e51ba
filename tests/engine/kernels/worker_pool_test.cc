#include "server/engine/kernels/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gatehouse {
namespace {

TEST(WorkerPool, RunsEachPieceOnce) {
  WorkerPool pool(4);
  for (const int pieces : {0, 1, 2, 3, 17, 1000}) {
    std::vector<std::atomic<int>> runs(pieces);
    pool.Run(pieces, [&](int piece, int) { ++runs[piece]; });
    for (int piece = 0; piece < pieces; ++piece) EXPECT_EQ(runs[piece], 1) << piece << " of " << pieces;
  }
}

TEST(WorkerPool, RunsMorePiecesThanItsCountersHold) {
  WorkerPool pool(2);
  std::atomic<int64_t> sum = 0;
  pool.Run(100'000, [&](int piece, int) { sum += piece; });
  EXPECT_EQ(sum, int64_t{99'999} * 100'000 / 2);
}

TEST(WorkerPool, SeesWhatThePiecesWrote) {
  WorkerPool pool(3);
  std::vector<int64_t> values(64);
  int64_t expected = 0;
  for (int region = 0; region < 5000; ++region) {
    pool.Run(64, [&](int piece, int) { values[piece] += piece; });
    expected += 63 * 64 / 2;
  }
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  EXPECT_EQ(sum, expected);
}

TEST(WorkerPool, NamesThreadsApart) {
  WorkerPool pool(3);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared = false;
  for (int region = 0; region < 200; ++region) {
    pool.Run(30, [&](int, int thread) {
      if (++inside[thread] != 1) shared = true;
      --inside[thread];
    });
  }
  EXPECT_FALSE(shared);
}

TEST(WorkerPool, UsesItsWorkersAlsoAfterTheyFellAsleep) {
  WorkerPool pool(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // beyond the spin
  // The piece that comes first waits for the other: only two threads can finish.
  std::atomic<int> started = 0;
  pool.Run(2, [&](int, int) {
    ++started;
    while (started < 2) std::this_thread::yield();
  });
  EXPECT_EQ(started, 2);
}

TEST(WorkerPool, ServesSeveralCallersAtOnce) {
  WorkerPool pool(2);
  std::vector<int64_t> sums(4);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int region = 0; region < 500; ++region) {
        std::atomic<int64_t> sum = 0;
        pool.Run(10, [&](int piece, int) { sum += piece; });
        sums[caller] += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int64_t sum : sums) EXPECT_EQ(sum, 500 * 45);
}

TEST(WorkerPool, OfOneThreadRunsEverythingOnTheCaller) {
  WorkerPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  pool.Run(5, [&](int, int thread) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

}  // namespace
}  // namespace gatehouse
