#include "client/client.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "client/errors.h"
#include "tests/client/client_of.h"
#include "tests/client/fake_server.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::client {
namespace {

using ::gatehouse::testing::ClientOf;
using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::gatehouse::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

v1::GenerateRequest Request(const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_model("m");
  request.mutable_prompt()->set_text(prompt);
  return request;
}

v1::GenerateResponse Token(int id, const std::string& text) {
  v1::GenerateResponse response;
  response.mutable_token()->set_id(id);
  response.mutable_token()->set_text(text);
  return response;
}

v1::GenerateResponse Summary() {
  v1::GenerateResponse response;
  response.mutable_summary()->set_finish_reason(v1::FINISH_REASON_LENGTH);
  return response;
}

TEST(Client, HearsEveryEventInOrderAndReturnsTheSummary) {
  FakeHandlers handlers;
  handlers.generate = [](const v1::GenerateRequest& request, const auto& stream) {
    v1::GenerateResponse start;
    start.mutable_start()->set_prompt_tokens(static_cast<uint32_t>(request.prompt().text().size()));
    stream.write(start);
    stream.write(Token(1, "a"));
    stream.write(Token(2, "b"));
    stream.write(Summary());
    return FakeStatus{};
  };
  FakeServer server(handlers);
  std::string heard;
  const auto summary = ClientOf(server)->Generate(Request("xyz"), {.on_start =
                                                                       [&](const auto& start) {
                                                                         heard += std::to_string(start.prompt_tokens());
                                                                         return true;
                                                                       },
                                                                   .on_token =
                                                                       [&](const auto& token) {
                                                                         heard += token.text();
                                                                         return true;
                                                                       }});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(heard, "3ab");
}

TEST(Client, SaysSoWhenAStreamEndsWithoutItsSummary) {
  FakeHandlers handlers;
  handlers.generate = [](const auto&, const auto& stream) {
    stream.write(Token(1, "a"));
    return FakeStatus{};
  };
  FakeServer server(handlers);
  EXPECT_THAT(ClientOf(server)->Generate(Request("x"), {}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("summary")));
}

TEST(Client, GivesTheServersCodeMessageAndReason) {
  FakeHandlers handlers;
  handlers.generate = [](const auto&, const auto&) {
    return FakeStatus{testing::kInvalidArgument, "prompt is empty", "EMPTY_INPUT"};
  };
  FakeServer server(handlers);
  const auto summary = ClientOf(server)->Generate(Request(""), {});
  EXPECT_THAT(summary, StatusIs(absl::StatusCode::kInvalidArgument, "prompt is empty"));
  EXPECT_EQ(ErrorReason(summary.status()), "EMPTY_INPUT");
  EXPECT_EQ(ErrorInfoOf(summary.status())->domain(), "gatehouse");
}

TEST(Client, RefusesTextThatIsNotUtf8BeforeSendingIt) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto&, const auto&) {
    ++calls;
    return FakeStatus{};
  };
  FakeServer server(handlers);
  v1::GenerateRequest request = Request("ab\xFF");
  EXPECT_THAT(ClientOf(server)->Generate(request, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "prompt.text is not valid UTF-8 at byte 2"));
  request = Request("fine");
  request.mutable_stop()->add_strings("ok");
  request.mutable_stop()->add_strings("\xC3");
  EXPECT_THAT(ClientOf(server)->Generate(request, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "stop.strings[1] is not valid UTF-8 at byte 0"));
  EXPECT_EQ(calls, 0);
}

TEST(Client, TriesAgainWhereTheServerWasUnavailableBeforeItAnswered) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto&, const auto& stream) {
    if (++calls < 3) return FakeStatus{testing::kUnavailable, "starting"};
    stream.write(Summary());
    return FakeStatus{};
  };
  FakeServer server(handlers);
  EXPECT_TRUE(ClientOf(server)->Generate(Request("x"), {}).ok());
  EXPECT_EQ(calls, 3);

  calls = 0;
  EXPECT_THAT(ClientOf(server, 1)->Generate(Request("x"), {}), StatusIs(absl::StatusCode::kUnavailable, "starting"));
  EXPECT_EQ(calls, 1);
}

TEST(Client, NeverRepeatsACallThatHadBegunToAnswer) {
  std::atomic<int> calls = 0;
  FakeHandlers handlers;
  handlers.generate = [&](const auto&, const auto& stream) {
    ++calls;
    stream.write(Token(1, "a"));
    return FakeStatus{testing::kUnavailable, "lost"};
  };
  FakeServer server(handlers);
  std::string text;
  const auto summary = ClientOf(server)->Generate(Request("x"), {.on_token = [&](const auto& token) {
                                                    text += token.text();
                                                    return true;
                                                  }});
  EXPECT_THAT(summary, StatusIs(absl::StatusCode::kUnavailable, "lost"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(text, "a");
}

TEST(Client, EndsACallAtItsDeadline) {
  std::atomic<bool> ended = false;
  FakeHandlers handlers;
  handlers.generate = [&](const auto&, const auto& stream) {
    while (!stream.cancelled()) std::this_thread::yield();
    ended = true;
    return FakeStatus{};
  };
  {
    FakeServer server(handlers);
    EXPECT_THAT(ClientOf(server)->Generate(Request("x"), {}, {.timeout = absl::Seconds(1)}),
                StatusIs(absl::StatusCode::kDeadlineExceeded, _));
  }
  EXPECT_TRUE(ended);  // the server heard of it
}

TEST(Client, EndsACallWhoseListenerHasHeardEnough) {
  std::atomic<bool> ended = false;
  FakeHandlers handlers;
  handlers.generate = [&](const auto&, const auto& stream) {
    while (!stream.cancelled()) stream.write(Token(1, "a"));
    ended = true;
    return FakeStatus{};
  };
  {
    FakeServer server(handlers);
    EXPECT_THAT(ClientOf(server)->Generate(Request("x"), {.on_token = [](const auto&) { return false; }}),
                StatusIs(absl::StatusCode::kCancelled, _));
  }
  EXPECT_TRUE(ended);
}

TEST(Client, IsCancelledFromAnotherThreadAndRefusesLaterCalls) {
  Canceller canceller;
  FakeHandlers handlers;
  handlers.generate = [&](const auto&, const auto& stream) {
    stream.write(Token(1, "a"));
    while (!stream.cancelled()) std::this_thread::yield();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const auto client = ClientOf(server);
  std::thread canceling_thread;
  const auto summary = client->Generate(Request("x"),
                                        {.on_token =
                                             [&](const auto&) {
                                               canceling_thread = std::thread([&] { canceller.Cancel(); });
                                               return true;
                                             }},
                                        {.canceller = &canceller});
  canceling_thread.join();
  EXPECT_THAT(summary, StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_THAT(client->Generate(Request("x"), {}, {.canceller = &canceller}), StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_TRUE(canceller.WaitFor(absl::InfiniteDuration()));
}

TEST(Client, NamesTheOptionThatIsOutOfItsBounds) {
  const auto create = [](auto change) {
    ClientOptions options;
    change(options);
    return Client::Create(options).status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(create([](auto& o) { o.server = ""; }), StatusIs(kInvalid, HasSubstr("server")));
  for (const char* server : {"host:0", "host:65536", "host:99999999999", "[::1]:70000"}) {
    EXPECT_THAT(create([&](auto& o) { o.server = server; }), StatusIs(kInvalid, HasSubstr("must be in [1, 65535]")));
  }
  for (const char* server : {"host:1", "[::1]:65535", "host", "unix:/tmp/socket", "dns:///host:50151"}) {
    EXPECT_TRUE(create([&](auto& o) { o.server = server; }).ok()) << server;
  }
  EXPECT_THAT(create([](auto& o) { o.attempts = 0; }), StatusIs(kInvalid, HasSubstr("attempts must lie in [1, 5]")));
  EXPECT_THAT(create([](auto& o) { o.max_message_bytes = -1; }), StatusIs(kInvalid, HasSubstr("max_message_bytes")));
  EXPECT_THAT(create([](auto& o) { o.keepalive = absl::Seconds(1); }), StatusIs(kInvalid, HasSubstr("keepalive")));
}

}  // namespace
}  // namespace gatehouse::client
