#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "client/monitor/http_get.h"
#include "client/monitor/prometheus_text.h"
#include "client/monitor/server_metrics.h"
#include "tests/client/fake_http.h"

namespace gatehouse::client {
namespace {

using ::gatehouse::testing::FakeHttp;
using ::testing::HasSubstr;

TEST(Metrics, ReadSeriesWithAndWithoutLabels) {
  const auto page = ParseMetrics(
      "# HELP a_total What it is.\n# TYPE a_total counter\n"
      "a_total 3\n"
      "a_total{model=\"m\",path=\"linear\"} 4.5e1 1700000000000\n"
      "  b { x = \"1\" , } NaN\r\n"
      "\n"
      "c{le=\"+Inf\"} +Inf\n"
      "c{le=\"1\"} -Inf");
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->at("a_total").size(), 2u);
  EXPECT_EQ(page->at("a_total")[0].value, 3);
  EXPECT_EQ(page->at("a_total")[1].value, 45);
  EXPECT_EQ(page->at("a_total")[1].Label("path"), "linear");
  EXPECT_EQ(page->at("a_total")[1].Label("no such"), "");
  EXPECT_TRUE(std::isnan(page->at("b")[0].value));
  EXPECT_EQ(page->at("b")[0].Label("x"), "1");
  EXPECT_EQ(page->at("c")[0].value, INFINITY);
  EXPECT_EQ(page->at("c")[1].value, -INFINITY);
}

TEST(Metrics, UnderstandEscapesInLabels) {
  const auto page = ParseMetrics("a{x=\"q\\\"b\\\\n\\nend\"} 1\n");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->at("a")[0].Label("x"), "q\"b\\n\nend");
}

TEST(Metrics, NameTheLineThatIsNotOfTheFormat) {
  for (const char* line : {"<html>", "a", "a{", "a{x}", "a{x=1} 1", "a{x=\"1} 1", "a{x=\"1\"", "a{x=\"1\" y=\"2\"} 1",
                           "a 1 2 3", "a x", "1a 1", "a{x=\"\\"}) {
    const auto page = ParseMetrics(std::string("ok 1\n") + line + "\n");
    ASSERT_FALSE(page.ok()) << line;
    EXPECT_THAT(std::string(page.status().message()), HasSubstr("line 2 of the page")) << line;
  }
}

TEST(Histogram, FindsQuantilesBetweenItsBounds) {
  MetricHistogram histogram;
  EXPECT_TRUE(std::isnan(histogram.Quantile(0.5)));
  histogram.buckets = {{0.1, 0}, {0.2, 10}, {0.4, 10}, {INFINITY, 20}};
  EXPECT_DOUBLE_EQ(histogram.Quantile(0.25), 0.15);
  EXPECT_DOUBLE_EQ(histogram.Quantile(0.5), 0.2);
  EXPECT_DOUBLE_EQ(histogram.Quantile(0.99), 0.4);  // beyond the last bound
  EXPECT_EQ(histogram.count(), 20);
}

constexpr char kPage[] = R"(gatehouse_build_info{version="0.1.0"} 1
gatehouse_heartbeat_age_seconds 0.25
process_resident_memory_bytes 1048576
gatehouse_requests_running{model="m"} 2
gatehouse_requests_waiting{model="m"} 1
gatehouse_kv_pages_used{model="m"} 3
gatehouse_kv_pages_capacity{model="m"} 12
gatehouse_requests_total{model="m",method="generate",code="OK"} 5
gatehouse_requests_total{model="m",method="score",code="CANCELLED"} 1
gatehouse_requests_total{model="m",method="score",code="INTERNAL"} 2
gatehouse_requests_total{model="",method="score",code="NOT_FOUND"} 7
gatehouse_mlp_tokens_total{model="m",layer="0",path="full",phase="prefill"} 30
gatehouse_mlp_tokens_total{model="m",layer="0",path="linear",phase="decode"} 10
gatehouse_mlp_tokens_total{model="m",layer="1",path="ladder",phase="decode"} 10
gatehouse_mlp_tokens_total{model="m",layer="1",path="skip",phase="score"} 30
gatehouse_mlp_tokens_total{model="m",layer="4000000000",path="skip",phase="score"} 30
gatehouse_time_to_first_token_seconds_bucket{model="m",le="1"} 4
gatehouse_time_to_first_token_seconds_bucket{model="m",le="+Inf"} 5
gatehouse_request_seconds_bucket{model="m",method="generate",le="2"} 5
gatehouse_request_seconds_bucket{model="m",method="score",le="2"} 50
gatehouse_calibration_info{model="m",calibration="cal",fingerprint="f"} 1
)";

TEST(ServerMetrics, KnowEveryModelOfThePage) {
  const auto page = ParseMetrics(kPage);
  ASSERT_TRUE(page.ok()) << page.status();
  const ServerMetrics metrics = ServerMetrics::Of(*page);
  EXPECT_EQ(metrics.version, "0.1.0");
  EXPECT_EQ(metrics.heartbeat_age, 0.25);
  EXPECT_EQ(metrics.resident_bytes, 1048576);
  ASSERT_EQ(metrics.models.size(), 1u);
  const ModelMetrics& model = metrics.models.at("m");
  EXPECT_EQ(model.running, 2);
  EXPECT_EQ(model.waiting, 1);
  EXPECT_EQ(model.kv_used / model.kv_capacity, 0.25);
  EXPECT_EQ(model.requests, 8);
  EXPECT_EQ(model.failed, 2);
  EXPECT_EQ(model.prompt_tokens, 30);
  EXPECT_EQ(model.generated_tokens, 10);
  ASSERT_EQ(model.layers.size(), 2u);
  EXPECT_EQ(model.layers[0].linear / model.layers[0].all(), 0.25);
  EXPECT_EQ(model.layers[1].skip, 30);
  EXPECT_EQ(model.decisions().ladder, 10);
  EXPECT_EQ(model.first_token.count(), 5);
  EXPECT_EQ(model.request.count(), 5);
  EXPECT_EQ(model.calibration, "cal");
}

TEST(ServerMetrics, TellWhatCameSinceAndSurviveARestart) {
  ModelMetrics before = ServerMetrics::Of(*ParseMetrics(kPage)).models.at("m");
  ModelMetrics now = before;
  now.requests += 3;
  now.prompt_tokens += 5;
  now.layers[0].linear += 30;
  now.first_token.buckets[1] += 2;
  ModelMetrics recent = now;
  recent.Subtract(before);
  EXPECT_EQ(recent.requests, 3);
  EXPECT_EQ(recent.prompt_tokens, 5);
  EXPECT_EQ(recent.decisions().all(), 30);
  EXPECT_EQ(recent.first_token.buckets.at(1), 2);
  EXPECT_EQ(recent.running, 2);  // a gauge stays
  ModelMetrics restarted = before;
  restarted.requests = 1;
  recent = restarted;
  recent.Subtract(before);
  EXPECT_EQ(recent.requests, 1);
}

TEST(Http, ParsesAddressesAndRefusesOthers) {
  const auto plain = HttpAddress::Parse("host:9464");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->HostAndPort(), "host:9464");
  const auto full = HttpAddress::Parse("http://[::1]:80/x/metrics");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->host, "::1");
  EXPECT_EQ(full->HostAndPort(), "[::1]:80");
  EXPECT_EQ(full->path, "/x/metrics");
  for (const char* text : {"", "host", ":80", "host:", "host:0", "host:65536", "host:8x", "ho st:80", "h:80/a\r\nb"}) {
    EXPECT_EQ(HttpAddress::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

absl::Status StatusOfAnswer(const std::string& answer, HttpOptions options = {}) {
  FakeHttp server([&] { return answer; });
  return HttpGet(*HttpAddress::Parse(server.address()), "/metrics", options).status();
}

TEST(Http, TakesAPageAndNothingElse) {
  FakeHttp server([] { return FakeHttp::Page("hello"); });
  const auto body = HttpGet(*HttpAddress::Parse(server.address()), "/metrics");
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "hello");
  EXPECT_THAT(std::string(StatusOfAnswer("HTTP/1.1 404 Not Found\r\n\r\n").message()), HasSubstr("404"));
  EXPECT_THAT(std::string(StatusOfAnswer("SSH-2.0-x\r\n").message()), HasSubstr("no HTTP"));
  EXPECT_THAT(std::string(StatusOfAnswer("").message()), HasSubstr("no HTTP"));
  EXPECT_THAT(std::string(StatusOfAnswer("HTTP/1.1 2").message()), HasSubstr("no HTTP"));
  EXPECT_THAT(std::string(StatusOfAnswer("HTTP/1.1 200 OK\r\ncontent-LENGTH: 9\r\n\r\nshort").message()),
              HasSubstr("cut short"));
}

TEST(Http, BoundsWhatItReadsAndHowLongItWaits) {
  EXPECT_EQ(StatusOfAnswer(FakeHttp::Page(std::string(100'000, 'x')), {.most_bytes = 10'000}).code(),
            absl::StatusCode::kResourceExhausted);
  // A listener that never answers.
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(silent, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string text = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(TryConnect(*HttpAddress::Parse(text), absl::Seconds(1)).code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(listen(silent, 4), 0);
  EXPECT_TRUE(TryConnect(*HttpAddress::Parse(text), absl::Seconds(1)).ok());
  EXPECT_EQ(HttpGet(*HttpAddress::Parse(text), "/", {.timeout = absl::Milliseconds(50)}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  close(silent);
}

TEST(ServerMetrics, RefuseThePageOfAnotherProgram) {
  FakeHttp server([] { return FakeHttp::Page("node_load1 3\n"); });
  const auto metrics = ServerMetrics::Fetch(*HttpAddress::Parse(server.address()), absl::Seconds(3));
  EXPECT_THAT(std::string(metrics.status().message()), HasSubstr("another program"));
}

}  // namespace
}  // namespace gatehouse::client
