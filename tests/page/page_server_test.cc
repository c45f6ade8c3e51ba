// The live page's HTTP, with a fake server of the RPCs behind it.

#include "server/page/page_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/client/fake_server.h"
#include "tests/page/http_exchange.h"

namespace gatehouse::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

v1::GenerateResponse TokenResponse(const std::string& raw) {
  v1::GenerateResponse response;
  response.mutable_token()->set_raw(raw);
  response.mutable_token()->mutable_insight()->set_raw(raw);
  response.mutable_token()->mutable_insight()->add_gate_probability(0.75f);
  return response;
}

// A model "m" that generates "a", "b", or, of the prompt "endless", without end.
struct FakeBackend {
  std::atomic<int> running{0}, tokens{0}, cancelled{0};
  size_t token_bytes = 1;

  FakeHandlers Handlers() {
    FakeHandlers handlers;
    handlers.list_models = [](const auto&, auto& response) {
      response.add_models()->set_name("m</script>");
      return FakeStatus{};
    };
    handlers.describe_model = [](const auto& request, auto& response) {
      if (request.model() != "m") return FakeStatus{5, "there is no model 'x'", "MODEL_NOT_FOUND"};
      response.set_name("m");
      response.mutable_calibration()->set_name("cal");
      response.mutable_calibration()->add_layers()->set_gateable(true);
      return FakeStatus{};
    };
    handlers.generate = [this](const v1::GenerateRequest& request, const auto& stream) {
      if (request.max_tokens() == 0 && request.has_max_tokens()) {
        return FakeStatus{3, "max_tokens is 0, must be at least 1", "INVALID_FIELD"};
      }
      EXPECT_EQ(request.gating().calibration(), "cal");
      ++running;
      v1::GenerateResponse start, summary;
      start.mutable_start()->set_prompt_tokens(2);
      stream.write(start);
      if (request.prompt().text() == "endless") {
        const std::string raw(token_bytes, 'x');
        while (stream.write(TokenResponse(raw)) && !stream.cancelled()) ++tokens;
        ++cancelled;
        --running;
        return FakeStatus{1, "the caller cancelled"};
      }
      for (const char* raw : {"a", "b"}) stream.write(TokenResponse(raw));
      if (request.prompt().text() == "fails late") {
        --running;
        return FakeStatus{8, "queue full", "QUEUE_FULL"};
      }
      summary.mutable_summary()->set_finish_reason(v1::FINISH_REASON_LENGTH);
      summary.mutable_summary()->set_generated_tokens(2);
      stream.write(summary);
      --running;
      return FakeStatus{};
    };
    return handlers;
  }
};

// A page before the fake.
struct Page {
  FakeBackend backend;
  FakeServer rpc{backend.Handlers()};
  PageServerOptions options{.listen = "0", .max_traces = 2};
  std::unique_ptr<PageServer> server;

  absl::Status Start() {
    auto started = PageServer::Start(*client::Client::Create({.server = rpc.address()}), options);
    if (started.ok()) server = *std::move(started);
    return started.status();
  }
  std::string Ask(const std::string& bytes) const {
    HttpExchange exchange(server->port());
    exchange.Send(bytes);
    return exchange.ReadAll();
  }
};

void WaitUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "it took too long";
    std::this_thread::yield();
  }
}

// One page for all tests that leave it as it is: to stop one takes two seconds.
class LivePage : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    page_ = new Page;
    ASSERT_TRUE(page_->Start().ok());
  }
  static void TearDownTestSuite() {
    delete page_;
    page_ = nullptr;
  }
  static std::string Ask(const std::string& bytes) { return page_->Ask(bytes); }
  static Page* page_;
};
Page* LivePage::page_ = nullptr;

std::vector<json> EventsIn(const std::string& answer) {
  std::vector<json> events;
  std::istringstream lines(BodyOf(answer));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) events.push_back(json::parse(line, nullptr, false));
  }
  return events;
}

const std::string kPlainHost = "Host: 127.0.0.1\r\n";

TEST_F(LivePage, IsOnePageThatMayAskItsOwnServerAlone) {
  const std::string answer = Ask("GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n");
  EXPECT_EQ(StatusOf(answer), 200);
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(answer, HasSubstr("connect-src 'self'"));
  EXPECT_THAT(answer, HasSubstr("X-Frame-Options: DENY"));
  EXPECT_THAT(answer, HasSubstr("\"name\":\"m\\u003c/script\\u003e\""));
  const std::string head = Ask("HEAD / HTTP/1.1\r\nHost: localhost:1\r\n\r\n");
  EXPECT_EQ(StatusOf(head), 200);
  EXPECT_EQ(BodyOf(head), "");
}

TEST_F(LivePage, StreamsAGenerationAsLinesOfJson) {
  const std::string answer = Ask(TracePost(R"({"model": "m", "prompt": "Hi", "max_tokens": 2})"));
  EXPECT_EQ(StatusOf(answer), 200);
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/x-ndjson"));
  const std::vector<json> events = EventsIn(answer);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["event"], "start");
  EXPECT_EQ(events[0]["trace"]["layers"].size(), 1u);
  EXPECT_EQ(events[1]["tokens"][0]["text"], "a");
  EXPECT_EQ(events[1]["tokens"][0]["gate_probability"], json({0.75}));
  EXPECT_EQ(events[2]["tokens"][0]["text"], "b");
  EXPECT_EQ(events[3]["event"], "end");
  EXPECT_EQ(events[3]["summary"]["finish_reason"], "length");
}

TEST_F(LivePage, SaysWhatIsWrongBeforeItBegins) {
  const auto error = [this](const std::string& body) {
    const std::string answer = Ask(TracePost(body));
    json parsed = json::parse(BodyOf(answer), nullptr, false);
    parsed["error"]["status"] = StatusOf(answer);
    return parsed["error"];
  };
  EXPECT_EQ(error("{")["status"], 400);
  EXPECT_EQ(error("{")["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(error(R"({"model": "m", "max_tokens": "2"})")["field"], "max_tokens");
  const json zero = error(R"({"model": "m", "prompt": "x", "max_tokens": 0})");
  EXPECT_EQ(zero["status"], 400);
  EXPECT_EQ(zero["field"], "max_tokens");
  EXPECT_EQ(zero["reason"], "INVALID_FIELD");
  const json unknown = error(R"({"model": "x", "prompt": "x"})");
  EXPECT_EQ(unknown["status"], 404);
  EXPECT_EQ(unknown["code"], "NOT_FOUND");
  EXPECT_EQ(unknown["reason"], "MODEL_NOT_FOUND");
}

TEST_F(LivePage, EndsTheStreamWithWhatWentWrongLater) {
  const auto events = EventsIn(Ask(TracePost(R"({"model": "m", "prompt": "fails late"})")));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[3]["event"], "error");
  EXPECT_EQ(events[3]["error"]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(events[3]["error"]["reason"], "QUEUE_FULL");
}

TEST_F(LivePage, RefusesOtherSitesHostsMethodsAndPaths) {
  const std::string body = R"({"model": "m", "prompt": "Hi"})";
  const std::string type = "Content-Type: application/json\r\n";
  EXPECT_EQ(StatusOf(Ask("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")), 403);
  EXPECT_EQ(StatusOf(Ask("GET / HTTP/1.0\r\n\r\n")), 403);
  EXPECT_EQ(StatusOf(Ask(TracePost(body, "Host: evil.example:80\r\n" + type))), 403);
  EXPECT_EQ(StatusOf(Ask(TracePost(body, kPlainHost + type + "Origin: http://evil.example\r\n"))), 403);
  EXPECT_EQ(StatusOf(Ask(TracePost(body, kPlainHost + type + "Sec-Fetch-Site: cross-site\r\n"))), 403);
  EXPECT_EQ(StatusOf(Ask(TracePost(body, kPlainHost + "Content-Type: text/plain\r\n"))), 415);
  EXPECT_EQ(StatusOf(Ask(TracePost(body, kPlainHost))), 415);
  EXPECT_EQ(StatusOf(Ask("POST /trace HTTP/1.1\r\n" + kPlainHost + type + "\r\n")), 411);
  EXPECT_EQ(StatusOf(Ask("GET /trace HTTP/1.1\r\n" + kPlainHost + "\r\n")), 405);
  EXPECT_EQ(StatusOf(Ask("POST / HTTP/1.1\r\n" + kPlainHost + "Content-Length: 0\r\n\r\n")), 405);
  EXPECT_EQ(StatusOf(Ask("GET /../etc/passwd HTTP/1.1\r\n" + kPlainHost + "\r\n")), 404);
  EXPECT_EQ(StatusOf(Ask("GET /x HTTP/1.1\r\n" + kPlainHost + "\r\n")), 404);
}

TEST(OwnPage, ReadsNoBodyBeyondItsLimit) {
  Page page;
  page.options.max_body_bytes = 1000;
  ASSERT_TRUE(page.Start().ok());
  EXPECT_EQ(StatusOf(page.Ask(TracePost(std::string(1001, ' ')))), 413);
  EXPECT_EQ(StatusOf(page.Ask(TracePost(R"({"model": "m"})" + std::string(900, ' ')))), 200);
}

TEST_F(LivePage, CancelsTheGenerationWhenTheBrowserGoes) {
  HttpExchange browser(page_->server->port());
  browser.Send(TracePost(R"({"model": "m", "prompt": "endless"})"));
  EXPECT_THAT(browser.ReadUntil("\"tokens\""), HasSubstr("200 OK"));
  EXPECT_EQ(page_->backend.running, 1);
  const int before = page_->backend.cancelled;
  browser.Close();
  WaitUntil([&] { return page_->backend.running == 0; });
  EXPECT_EQ(page_->backend.cancelled, before + 1);
}

TEST(OwnPage, PausesTheGenerationOfABrowserThatDoesNotReadAndGivesItUp) {
  Page page;
  page.backend.token_bytes = 100 << 10;
  page.options.outbox_bytes = 1000;
  page.options.patience = absl::Seconds(1);
  ASSERT_TRUE(page.Start().ok());
  HttpExchange browser(page.server->port());
  browser.Send(TracePost(R"({"model": "m", "prompt": "endless"})"));
  WaitUntil([&] { return page.backend.cancelled == 1; });
  // What the sockets and gRPC's windows hold, and no more.
  EXPECT_LT(page.backend.tokens, 1000);
}

TEST_F(LivePage, ShowsNoMoreGenerationsAtOnceThanItMay) {
  HttpExchange first(page_->server->port()), second(page_->server->port());
  for (HttpExchange* browser : {&first, &second}) {
    browser->Send(TracePost(R"({"model": "m", "prompt": "endless"})"));
    browser->ReadUntil("\"tokens\"");
  }
  const std::string answer = Ask(TracePost(R"({"model": "m", "prompt": "Hi"})"));
  EXPECT_EQ(StatusOf(answer), 429);
  EXPECT_EQ(json::parse(BodyOf(answer))["error"]["reason"], "TOO_MANY_CALLS");
  EXPECT_EQ(StatusOf(Ask("GET / HTTP/1.1\r\n" + kPlainHost + "\r\n")), 200);
  first.Close();
  second.Close();
  WaitUntil([&] { return page_->backend.running == 0; });
}

TEST(OwnPage, EndsItsGenerationsWhenItIsStopped) {
  Page page;
  ASSERT_TRUE(page.Start().ok());
  HttpExchange browser(page.server->port());
  browser.Send(TracePost(R"({"model": "m", "prompt": "endless"})"));
  browser.ReadUntil("\"tokens\"");
  std::thread reader([&] { browser.ReadAll(); });
  page.server = nullptr;
  reader.join();
  WaitUntil([&] { return page.backend.running == 0; });
}

TEST_F(LivePage, SaysWhyItCannotListen) {
  Page second;
  second.options.listen = std::to_string(page_->server->port());
  EXPECT_EQ(second.Start().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace gatehouse::testing
