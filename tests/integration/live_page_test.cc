// The live page of a real server, over raw HTTP.

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/integration/running_server.h"
#include "tests/page/http_exchange.h"

namespace gatehouse::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Body(const std::string& prompt, int max_tokens) {
  return {{"model", kModel}, {"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}};
}

std::vector<json> EventsIn(const std::string& answer) {
  std::vector<json> events;
  std::istringstream lines(BodyOf(answer));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) events.push_back(json::parse(line, nullptr, false));
  }
  return events;
}

class LivePage : public ::testing::Test {
 protected:
  static std::vector<std::string> Flags(const TemporaryFolder& folder) {
    return {"--model", ModelFlag(),     "--state-dir", folder.path(),   "--page-listen",
            "0",       "--max-running", "1",           "--max-waiting", "0"};
  }
  std::string Ask(const json& body) const {
    HttpExchange exchange(server_.page_port());
    exchange.Send(TracePost(body.dump()));
    return exchange.ReadAll();
  }
  TemporaryFolder folder_;
  RunningServer server_{Flags(folder_)};
};

TEST_F(LivePage, ShowsTheSameTokensAsACallAndWhatWasRecordedOfEach) {
  const auto events = EventsIn(Ask(Body("The captain of the ship", 8)));
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.front()["event"], "start");
  EXPECT_EQ(events.back()["event"], "end");
  const size_t layers = events.front()["trace"]["layers"].size();
  std::string text;
  size_t tokens = 0, recorded = 0;
  for (const json& event : events) {
    if (event["event"] != "tokens") continue;
    for (const json& token : event["tokens"]) {
      ++tokens;
      text += token["text"].get<std::string>();
      if (!token.contains("gate_probability")) continue;
      ++recorded;
      for (const char* name : {"gate_probability", "nonlinearity", "output_norm", "consensus"}) {
        EXPECT_EQ(token[name].size(), layers) << name;
      }
      for (const json& p : token["gate_probability"]) {
        EXPECT_TRUE(p.is_number() && p >= 0 && p <= 1) << p;
      }
    }
  }
  EXPECT_EQ(recorded, tokens - 1);  // the last one was not fed back
  const json call =
      server_.Json({"generate", "-m", kModel, "--prompt", "The captain of the ship", "-n", "8", "--temperature", "0"});
  EXPECT_EQ(text, "The captain of the ship" + call["text"].get<std::string>());
  EXPECT_EQ(events.back()["summary"]["generated_tokens"], 8);
}

// Of the full run; in the first gateable layer nothing before it differs from a gated one.
TEST_F(LivePage, ReportsTheDecisionsThatTheFirstGateableLayerThenMakes) {
  const std::string text = "It was the best of times, it was the worst of times, said the captain of the old ship.";
  const json trace = server_.Json({"report", "-m", kModel, text})["sections"][0];
  const auto gateable = std::find_if(trace["layers"].begin(), trace["layers"].end(),
                                     [](const json& layer) { return layer["gateable"] == true; });
  ASSERT_NE(gateable, trace["layers"].end());
  const size_t layer = (*gateable)["layer"];
  for (const char* threshold : {"0.3", "0.5", "0.8"}) {
    int linear = 0;
    for (const json& token : trace["tokens"]) {
      if (token["position"] < trace["sink_positions"]) continue;
      linear += token["gate_probability"][layer].get<float>() > std::stof(threshold) ? 1 : 0;
    }
    const json run = server_.Json({"score", "-m", kModel, "--text", text, "-g", "gated", "-t", threshold});
    EXPECT_EQ(run["routing"]["layers"][layer]["linear_tokens"], linear) << threshold;
  }
}

TEST_F(LivePage, HasTheLimitsOfTheCalls) {
  HttpExchange first(server_.page_port());
  json endless = Body("It was", 500);
  first.Send(TracePost(endless.dump()));
  first.ReadUntil("\"tokens\"");
  const std::string refused = Ask(Body("It was", 4));
  EXPECT_EQ(StatusOf(refused), 429) << refused;
  EXPECT_EQ(json::parse(BodyOf(refused))["error"]["reason"], "QUEUE_FULL");
  first.Close();
  ASSERT_TRUE(server_.WaitForMetric("gatehouse_requests_running", 0));
  const std::string empty = Ask(Body("", 4));
  EXPECT_EQ(StatusOf(empty), 400);
  EXPECT_EQ(json::parse(BodyOf(empty))["error"]["field"], "prompt");
  json late = Body("It was", 500);
  late["timeout_seconds"] = 0.05;
  const std::string answer = Ask(late);
  EXPECT_THAT(answer, HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(LivePage, FreesTheRowOfABrowserThatGoes) {
  HttpExchange browser(server_.page_port());
  browser.Send(TracePost(Body("It was", 500).dump()));
  browser.ReadUntil("\"tokens\"");
  browser.Close();
  EXPECT_TRUE(server_.WaitForMetric("gatehouse_requests_running", 0));
  EXPECT_TRUE(server_.WaitForMetric("gatehouse_kv_pages_used", 0));
  EXPECT_EQ(server_.Metric("gatehouse_requests_total", {"code=\"CANCELLED\""}), 1);
  EXPECT_LT(server_.Metric("gatehouse_generated_tokens_total"), 500);
}

TEST_F(LivePage, EndsInOrderWithTheServer) {
  HttpExchange browser(server_.page_port());
  browser.Send(TracePost(Body("It was", 60).dump()));
  browser.ReadUntil("\"tokens\"");
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(EventsIn(browser.ReadAll()).back()["event"], "end");
  EXPECT_EQ(server_.process().Wait(), 0) << server_.process().error_output();
}

}  // namespace
}  // namespace gatehouse::testing
