// Slow readers, storms and silent clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "server/base/listen_address.h"
#include "server/base/strings.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class OverloadTest : public RpcTest {
 protected:
  void UseLongContext() {
    engine_options_.context = 40'000;
    engine_options_.kv_pages = 4096;
    engine_options_.layers = 24;
  }
  static v1::GenerateRequest LongPrompt() {
    v1::GenerateRequest request = Prompt("abc", 30'000);
    request.set_top_logprobs(20);
    request.mutable_records()->set_nonlinearity(true);
    request.mutable_records()->set_consensus(true);
    return request;
  }
  // Returns once the scheduler has stopped making tokens for a reader that does not read.
  size_t WaitUntilPaused() {
    size_t steps = 0;
    WaitUntil(
        [&] {
          const size_t before = steps;
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          steps = engine_->steps().size();
          return steps > 0 && steps == before;
        },
        "the call pauses");
    return steps;
  }
};

// Some megabytes lie in the transport, one in the outbox, and then the
// call pauses.
TEST_F(OverloadTest, ASlowReaderPausesItsCallAndMissesNothing) {
  UseLongContext();
  StartServer();
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, LongPrompt());
  EXPECT_LT(WaitUntilPaused(), 30'000U);
  const auto responses = ReadAll(*reader);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(responses, SizeIs(30'002));
}

TEST_F(OverloadTest, AReaderThatNeverReadsIsGivenUp) {
  UseLongContext();
  scheduler_options_.stall_limit = absl::Milliseconds(500);
  rpc_options_.outbox.linger = absl::Milliseconds(500);
  StartServer();
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, LongPrompt());
  WaitUntil([&] { return engine_->open_sequences() == 1; }, "the call runs");
  WaitUntil([&] { return engine_->open_sequences() == 0; }, "the row is free");
  WaitUntil([&] { return server_->calls_in_work() == 0; }, "the stream is closed");
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="RESOURCE_EXHAUSTED",method="generate",model="m"})"), 1);
  context.TryCancel();
}

TEST_F(OverloadTest, CancellingAPausedCallFreesIt) {
  UseLongContext();
  StartServer();
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, LongPrompt());
  (void)WaitUntilPaused();
  context.TryCancel();
  WaitUntil([&] { return engine_->open_sequences() == 0 && server_->calls_in_work() == 0; }, "the call is over");
}

TEST_F(OverloadTest, AStormOfCancelledCallsStaysWithinTheLimits) {
  rpc_options_.max_calls = 64;
  rpc_options_.max_concurrent_streams = 32;
  StartServer();
  engine_->BlockSteps();
  const v1::GenerateRequest request = Prompt("abc", 50);
  for (int i = 0; i < 1000; ++i) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto reader = generation_->AsyncGenerate(&context, request, &queue, nullptr);
    context.TryCancel();
    EXPECT_LE(server_->calls_in_work(), 64);
    queue.Shutdown();
    void* tag;
    bool ok;
    while (queue.Next(&tag, &ok)) {
    }
  }
  engine_->ReleaseSteps();
  WaitUntil([&] { return server_->calls_in_work() == 0 && engine_->open_sequences() == 0; }, "all calls are over");
  // The last cancellations may still be on their way.
  WaitUntil([&] { return Generate(Prompt("abc", 2)).status.ok(); }, "a call is served again");
}

TEST_F(OverloadTest, OneCallOverTheLimitIsRefusedAtOnce) {
  rpc_options_.max_calls = 3;
  StartServer();
  engine_->BlockSteps();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(generation_->Generate(contexts.back().get(), Prompt("abc", 1)));
  }
  WaitUntil([&] { return server_->calls_in_work() == 3; }, "three calls are in work");
  const Generated refused = Generate(Prompt("abc", 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonIn(refused.status), "TOO_MANY_CALLS");
  grpc::ClientContext list;
  v1::ListModelsResponse models;
  EXPECT_EQ(ReasonIn(models_->ListModels(&list, {}, &models)), "TOO_MANY_CALLS");
  engine_->ReleaseSteps();
  for (const auto& reader : readers) EXPECT_THAT(ReadAll(*reader), SizeIs(3));
}

// By default a server answers such pings with GOAWAY.
class KeepaliveTest : public OverloadTest {
 protected:
  // The status of a call during which the client pings every 200 ms and nothing comes:
  // for `silence`, or until the connection breaks.
  grpc::Status SilentCall(std::optional<std::chrono::seconds> silence) {
    StartServer();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 200);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    const auto stub = v1::GenerationService::NewStub(NewChannel(arguments));
    engine_->BlockSteps();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub->Generate(&context, Prompt("abc", 1));
    engine_->WaitUntilBlocked();
    if (silence.has_value()) {
      std::this_thread::sleep_for(*silence);
      engine_->ReleaseSteps();
    }
    (void)ReadAll(*reader);
    grpc::Status status = reader->Finish();
    engine_->ReleaseSteps();
    return status;
  }
};

TEST_F(KeepaliveTest, PingsAtTheAllowedRateKeepASilentCallOpen) {
  rpc_options_.min_ping_interval = absl::Milliseconds(100);
  const grpc::Status status = SilentCall(std::chrono::seconds(3));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(KeepaliveTest, FasterPingsThanAllowedEndTheConnection) {
  const grpc::Status status = SilentCall(std::nullopt);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Generate(Prompt("abc", 1)).status.ok());
}

TEST_F(RpcTest, APortInUseIsSaid) {
  StartServer();
  RpcServerOptions options;
  options.listen = StrCat("127.0.0.1:", server_->port());
  RpcServer::Backend backend;
  backend.catalog = &catalog_;
  backend.scheduler = scheduler_.get();
  backend.operations = operations_.get();
  backend.observer = metrics_.get();
  EXPECT_THAT(
      RpcServer::Start(backend, options),
      StatusIs(absl::StatusCode::kAlreadyExists, StrCat("cannot listen on ", options.listen, ": address in use")));
  options.listen = "nowhere";
  EXPECT_THAT(RpcServer::Start(backend, options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")));
}

}  // namespace
}  // namespace gatehouse::testing
