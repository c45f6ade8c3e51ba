#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "tests/serving/serving_fixture.h"

namespace gatehouse::testing {
namespace {

class SchedulerStress : public ServingTest {};

// A request whose outcome depends on `seed` alone.
GenerateRequest RequestOf(uint64_t seed) {
  std::mt19937_64 random(seed);
  GenerateRequest request;
  request.model = "m";
  for (uint64_t i = 1 + random() % 20; i > 0; --i)
    request.prompt.token_ids.push_back(static_cast<int32_t>(random() % 256));
  request.max_tokens = 1 + random() % 12;
  request.sampling.temperature = random() % 2 == 0 ? 0 : 1;
  request.sampling.seed = random();
  request.has_seed = true;
  request.stop.ignore_eos = true;
  request.records.routing = random() % 3 == 0;
  const std::array<GatingMode, 3> modes = {GatingMode::kFull, GatingMode::kLinear, GatingMode::kGated};
  request.gating.request.mode = modes[random() % 3];
  return request;
}

// Starts calls from several threads, cancels some at random moments, gives some short
// deadlines and some slow readers.  Each must end exactly once with a status of its own
// doing, complete ones with the tokens of their solo run, and the observer must hear
// what the responses report.
TEST_F(SchedulerStress, KeepsEveryCallsPromiseThroughRandomInterleavings) {
  constexpr int kThreads = 4, kCallsOfAThread = 60, kKinds = 16;
  Run({.max_running = 6, .max_waiting = 1000, .prefill_chunk = 5}, {.context = 48, .kv_pages = 14, .page_tokens = 8});
  std::vector<std::vector<int32_t>> solo;
  uint64_t solo_decisions = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto sink = Generate(RequestOf(kind));
    solo.push_back(sink->ids());
    solo_decisions += sink->summary->routing.decisions;
  }

  std::atomic<uint64_t> reported_decisions{solo_decisions}, ended_early{0}, complete{0};
  const auto work = [&](int thread) {
    std::mt19937_64 random(1000 + thread);
    struct Flight {
      int kind;
      std::shared_ptr<GenerationRecord> sink;
      std::shared_ptr<Call> call;
      bool may_fail;
    };
    std::vector<Flight> flights;
    for (int i = 0; i < kCallsOfAThread; ++i) {
      const int kind = static_cast<int>(random() % kKinds);
      const uint64_t fate = random() % 4;
      auto sink = std::make_shared<GenerationRecord>();
      const absl::Time deadline =
          fate == 0 ? absl::Now() + absl::Microseconds(200 + random() % 5000) : absl::InfiniteFuture();
      if (fate == 1) sink->SetAccepts(false);
      const auto call = scheduler_->StartGenerate(RequestOf(kind), {.deadline = deadline}, sink);
      if (!call.ok()) {
        EXPECT_TRUE(fate == 0 && absl::IsDeadlineExceeded(call.status())) << call.status();
        ++ended_early;
        continue;
      }
      if (fate == 2) {
        if (random() % 2 == 0) absl::SleepFor(absl::Microseconds(random() % 2000));
        (*call)->Cancel();
      }
      flights.push_back({kind, sink, *call, fate == 0 || fate == 2});
      if (random() % 4 == 0) {
        // Some reader catches up.
        const Flight& some = flights[random() % flights.size()];
        some.sink->SetAccepts(true);
        some.call->Resume();
      }
    }
    for (const Flight& flight : flights) {
      flight.sink->SetAccepts(true);
      flight.call->Resume();
    }
    for (const Flight& flight : flights) {
      const absl::Status status = flight.sink->Wait();
      const std::vector<int32_t> ids = flight.sink->ids();
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), solo[flight.kind].begin())) << "kind " << flight.kind;
      if (status.ok()) {
        ++complete;
        EXPECT_EQ(ids, solo[flight.kind]);
        reported_decisions += flight.sink->summary->routing.decisions;
      } else {
        ++ended_early;
        EXPECT_TRUE(flight.may_fail) << status;
        EXPECT_TRUE(absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) << status;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();

  EXPECT_GT(complete.load(), 60u);
  EXPECT_EQ(complete + ended_early, uint64_t{kThreads} * kCallsOfAThread);
  EXPECT_EQ(observer_.calls().size(), static_cast<size_t>(kThreads * kCallsOfAThread + kKinds));
  EXPECT_EQ(engine_->open_sequences(), 0);
  EXPECT_EQ(engine_->kv_usage().pages_used, 0);
  // Calls that ended early ran rows too, which no response reports.
  const uint64_t observed =
      3 * (observer_.routed("m", Phase::kPrefill).tokens + observer_.routed("m", Phase::kDecode).tokens);
  EXPECT_GE(observed, reported_decisions.load());
  if (ended_early == 0) {
    EXPECT_EQ(observed, reported_decisions.load());
  }
}

TEST_F(SchedulerStress, ShutsDownInTheMiddleOfEverything) {
  for (int round = 0; round < 20; ++round) {
    CountingObserver observer;
    ModelCatalog catalog;
    FakeEngine* engine = nullptr;
    ASSERT_TRUE(catalog.Add(MakeFakeModel("m", {}, &engine)).ok());
    std::vector<std::shared_ptr<GenerationRecord>> sinks;
    std::mutex mutex;
    {
      const auto scheduler = Scheduler::Create(catalog, {.max_running = 3, .prefill_chunk = 4}, observer);
      std::vector<std::thread> threads;
      for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&, thread] {
          for (int i = 0; i < 20; ++i) {
            GenerateRequest request = RequestOf(100 + 20 * thread + i);
            request.gating = {};
            auto sink = std::make_shared<GenerationRecord>();
            const auto call = scheduler->StartGenerate(request, {.deadline = absl::Now() + absl::Seconds(20)}, sink);
            if (!call.ok()) return;
            const std::lock_guard lock(mutex);
            sinks.push_back(sink);
          }
        });
      }
      absl::SleepFor(absl::Microseconds(100 * round));
      scheduler->Shutdown();
      for (std::thread& thread : threads) thread.join();
    }
    for (const auto& sink : sinks) EXPECT_TRUE(sink->ended());
    EXPECT_EQ(engine->open_sequences(), 0);
  }
}

}  // namespace
}  // namespace gatehouse::testing
