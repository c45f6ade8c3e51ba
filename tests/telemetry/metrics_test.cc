#include "server/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "server/base/strings.h"
#include "server/serving/model_catalog.h"
#include "tests/support/fake_engine.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    EXPECT_TRUE(catalog_.Add(MakeFakeModel("m")).ok());
    metrics_ = std::make_unique<Metrics>(catalog_, "1.2.3");
  }

  double Value(const std::string& series) const {
    const std::string page = "\n" + metrics_->Page();
    const size_t at = page.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return at == std::string::npos ? kNan : std::stod(page.substr(at + 1 + series.size()));
  }

  static CallObservation Completed() {
    CallObservation call;
    call.model = "m";
    call.method = "generate";
    call.finish_reason = FinishReason::kEos;
    call.prompt_tokens = 7;
    call.generated_tokens = 3;
    call.queue_seconds = 0.5;
    call.prefill_seconds = 0.25;
    call.decode_seconds = 1;
    call.total_seconds = 2;
    call.first_token_seconds = 0.75;
    return call;
  }

  ModelCatalog catalog_;
  std::unique_ptr<Metrics> metrics_;
};

// One line of the page: a comment, or a series and its number.
const std::regex& HelpLine() {
  static const std::regex* const line = new std::regex(R"(# HELP [a-z_]+ [^\\]+)");
  return *line;
}
const std::regex& TypeLine() {
  static const std::regex* const line = new std::regex(R"(# TYPE [a-z_]+ (counter|gauge|histogram))");
  return *line;
}
const std::regex& SampleLine() {
  static const std::regex* const line =
      new std::regex(R"re(([a-z_]+)(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+)re");
  return *line;
}

// A page that a scraper takes as a whole, from the start.
TEST_F(MetricsTest, EveryLineIsWellFormedBeforeAndAfterTheFirstCall) {
  for (int round = 0; round < 2; ++round) {
    std::istringstream page(metrics_->Page());
    std::set<std::string> series;
    for (std::string line; std::getline(page, line);) {
      EXPECT_TRUE(std::regex_match(line, HelpLine()) || std::regex_match(line, TypeLine()) ||
                  std::regex_match(line, SampleLine()))
          << line;
      if (line.starts_with("#")) continue;
      EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
    }
    EXPECT_GT(series.size(), 100U);
    metrics_->OnCallEnd(Completed());
    metrics_->OnStep("m", 2, 10, 0.1);
  }
}

TEST_F(MetricsTest, EveryHistogramHasOneInfiniteBucketThatEqualsItsCount) {
  metrics_->OnStep("m", 100'000, 100'000, 1e6);  // above every bound
  std::istringstream page(metrics_->Page());
  std::map<std::string, std::string> infinite;  // by name and labels
  int histograms = 0;
  const std::regex bucket(R"re(([a-z_]+)_bucket\{(.*),?le="\+Inf"\} (.*))re");
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, bucket)) continue;
    ++histograms;
    EXPECT_TRUE(infinite.emplace(StrCat(match.str(1), match.str(2)), match.str(3)).second) << line;
  }
  EXPECT_GE(histograms, 15);
  EXPECT_EQ(Value(R"(gatehouse_step_rows_count{model="m"})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_step_rows_bucket{model="m",le="+Inf"})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_step_rows_bucket{model="m",le="4096"})"), 0);
}

TEST_F(MetricsTest, EverySeriesOfRoutingExistsFromTheStart) {
  for (const char* const phase : {"prefill", "decode", "score"}) {
    for (const char* const path : {"full", "linear", "ladder"}) {
      for (int layer = 0; layer < 3; ++layer) {
        EXPECT_EQ(Value(StrCat("gatehouse_mlp_tokens_total{layer=\"", layer, "\",model=\"m\",path=\"", path,
                               "\",phase=\"", phase, "\"}")),
                  0);
      }
    }
  }
}

TEST_F(MetricsTest, RoutedTokensAreCountedByLayerPathAndPhase) {
  const uint32_t linear[] = {0, 4, 10}, ladder[] = {3, 1, 0}, skip[] = {0, 2, 0};
  const PathTokens paths{.linear = linear, .ladder = ladder, .skip = skip};
  metrics_->OnRouted("m", Phase::kDecode, 10, paths);
  metrics_->OnRouted("m", Phase::kDecode, 10, paths);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="1",model="m",path="skip",phase="decode"})"), 4);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="0",model="m",path="full",phase="decode"})"), 14);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="0",model="m",path="ladder",phase="decode"})"), 6);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="1",model="m",path="full",phase="decode"})"), 6);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="1",model="m",path="linear",phase="decode"})"), 8);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="1",model="m",path="ladder",phase="decode"})"), 2);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="2",model="m",path="full",phase="decode"})"), 0);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="2",model="m",path="linear",phase="prefill"})"), 0);
}

TEST_F(MetricsTest, ACompletedGenerationIsCountedOnce) {
  metrics_->OnCallEnd(Completed());
  EXPECT_EQ(Value(R"(gatehouse_requests_total{code="OK",method="generate",model="m"})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_prompt_tokens_total{method="generate",model="m"})"), 7);
  EXPECT_EQ(Value(R"(gatehouse_generated_tokens_total{model="m"})"), 3);
  EXPECT_EQ(Value(R"(gatehouse_finish_reasons_total{model="m",reason="eos"})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_time_to_first_token_seconds_sum{model="m"})"), 0.75);
  EXPECT_EQ(Value(R"(gatehouse_request_seconds_sum{method="generate",model="m"})"), 2);
  EXPECT_EQ(Value(R"(gatehouse_queue_seconds_sum{method="generate",model="m"})"), 0.5);
  EXPECT_EQ(Value(R"(gatehouse_prefill_seconds_sum{model="m"})"), 0.25);
  EXPECT_EQ(Value(R"(gatehouse_decode_seconds_sum{model="m"})"), 1);
}

TEST_F(MetricsTest, AFailedCallCountsItsTokensAndNoLatency) {
  CallObservation call = Completed();
  call.code = absl::StatusCode::kCancelled;
  call.finish_reason.reset();
  metrics_->OnCallEnd(call);
  EXPECT_EQ(Value(R"(gatehouse_requests_total{code="CANCELLED",method="generate",model="m"})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_generated_tokens_total{model="m"})"), 3);
  EXPECT_EQ(Value(R"(gatehouse_request_seconds_count{method="generate",model="m"})"), 0);
}

// What a client names must not become a label.
TEST_F(MetricsTest, UnknownModelsMethodsAndCodesAddNoSeries) {
  CallObservation call;
  call.model = "whatever a client wrote";
  call.method = "generate";
  call.code = absl::StatusCode::kNotFound;
  metrics_->OnCallEnd(call);
  call.method = "no method";
  metrics_->OnCallEnd(call);
  call.method = "score";
  call.code = absl::StatusCode::kDataLoss;
  metrics_->OnCallEnd(call);
  metrics_->OnInterToken("no model", 1);
  metrics_->OnStep("no model", 1, 1, 1);
  metrics_->OnRouted("no model", Phase::kScore, 1, {});
  EXPECT_EQ(Value(R"(gatehouse_requests_total{code="NOT_FOUND",method="generate",model=""})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_requests_total{code="UNKNOWN",method="score",model=""})"), 1);
  EXPECT_THAT(metrics_->Page(), Not(HasSubstr("whatever")));
  EXPECT_THAT(metrics_->Page(), Not(HasSubstr("no m")));
}

// Left to prometheus-cpp one NaN stays for good.
TEST_F(MetricsTest, NanAndNegativeNumbersAreLeftOut) {
  metrics_->OnInterToken("m", kNan);
  metrics_->OnInterToken("m", -1);
  metrics_->OnInterToken("m", std::numeric_limits<double>::infinity());
  metrics_->OnInterToken("m", 0.5);
  CallObservation call = Completed();
  call.generated_tokens = -3;
  call.total_seconds = kNan;
  metrics_->OnCallEnd(call);
  EXPECT_EQ(Value(R"(gatehouse_inter_token_seconds_count{model="m"})"), 1);
  EXPECT_EQ(Value(R"(gatehouse_inter_token_seconds_sum{model="m"})"), 0.5);
  EXPECT_EQ(Value(R"(gatehouse_generated_tokens_total{model="m"})"), 0);
  EXPECT_EQ(Value(R"(gatehouse_request_seconds_count{method="generate",model="m"})"), 0);
}

TEST_F(MetricsTest, ThePageSaysWhatIsServed) {
  const std::string page = metrics_->Page();
  EXPECT_THAT(page, HasSubstr(R"(gatehouse_build_info{version="1.2.3"} 1)"));
  EXPECT_THAT(page, HasSubstr(R"(gatehouse_model_info{architecture=)"));
  EXPECT_THAT(page, HasSubstr("# TYPE gatehouse_calibration_info gauge"));
  EXPECT_GT(Value("process_resident_memory_bytes"), 1e6);
}

TEST_F(MetricsTest, NothingIsLostWhenManyThreadsCount) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      const uint32_t linear[] = {1, 0, 2}, none[] = {0, 0, 0};
      const PathTokens paths{.linear = linear, .ladder = none, .skip = none};
      for (int n = 0; n < 2000; ++n) {
        metrics_->OnRouted("m", Phase::kPrefill, 2, paths);
        metrics_->OnCallEnd(Completed());
        if (n % 500 == 0) (void)metrics_->Page();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="0",model="m",path="full",phase="prefill"})"), 8000);
  EXPECT_EQ(Value(R"(gatehouse_mlp_tokens_total{layer="2",model="m",path="linear",phase="prefill"})"), 16000);
  EXPECT_EQ(Value(R"(gatehouse_requests_total{code="OK",method="generate",model="m"})"), 8000);
}

}  // namespace
}  // namespace gatehouse::testing
