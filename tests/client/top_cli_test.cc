#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <string>

#include "tests/client/fake_http.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::FakeHttp;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A server's page when it has been asked `asked` times: each time 50 positions more were read and 25 generated, of
// which half went linear in layer 0 and none in layer 1.
std::string Page(int asked) {
  const auto count = [&](int each) { return std::to_string(1000 + each * asked); };
  return "gatehouse_build_info{version=\"0.1.0\"} 1\n"
         "gatehouse_heartbeat_age_seconds 0.1\n"
         "process_resident_memory_bytes 2097152\n"
         "gatehouse_requests_running{model=\"m\"} 3\n"
         "gatehouse_requests_waiting{model=\"m\"} 1\n"
         "gatehouse_kv_pages_used{model=\"m\"} 5\n"
         "gatehouse_kv_pages_capacity{model=\"m\"} 10\n"
         "gatehouse_kv_page_bytes{model=\"m\"} 1024\n"
         "gatehouse_requests_total{model=\"m\",method=\"generate\",code=\"OK\"} " +
         count(2) + "\ngatehouse_mlp_tokens_total{model=\"m\",layer=\"0\",path=\"full\",phase=\"prefill\"} " +
         count(50) + "\ngatehouse_mlp_tokens_total{model=\"m\",layer=\"0\",path=\"linear\",phase=\"decode\"} " +
         count(25) + "\ngatehouse_mlp_tokens_total{model=\"m\",layer=\"0\",path=\"linear\",phase=\"prefill\"} " +
         count(25) + "\ngatehouse_mlp_tokens_total{model=\"m\",layer=\"1\",path=\"full\",phase=\"prefill\"} " +
         count(100) + "\ngatehouse_time_to_first_token_seconds_bucket{model=\"m\",le=\"0.1\"} " + count(2) +
         "\ngatehouse_time_to_first_token_seconds_bucket{model=\"m\",le=\"+Inf\"} " + count(2) + "\n";
}

class Top : public ::testing::Test {
 protected:
  std::atomic<int> asked_ = 0;
  FakeHttp server_{[this] { return FakeHttp::Page(Page(asked_++)); }};
  std::vector<std::string> Arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"top", "--metrics", server_.address(), "--interval", "0.1"});
    return more;
  }
};

TEST_F(Top, TellsRatesOfWhatCameBetween) {
  const Finished run = Gatehouse(Arguments({"--once", "--json"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = run.json();
  const double seconds = json["window_seconds"];
  EXPECT_GE(seconds, 0.1);
  const auto& model = json["models"][0];
  EXPECT_EQ(model["model"], "m");
  EXPECT_EQ(model["running"], 3);
  EXPECT_EQ(model["waiting"], 1);
  EXPECT_NEAR(model["prompt_tokens_per_second"], 75 / seconds, 1e-6);
  EXPECT_NEAR(model["generated_tokens_per_second"], 25 / seconds, 1e-6);
  EXPECT_NEAR(model["requests_per_second"], 2 / seconds, 1e-6);
  EXPECT_EQ(model["kv_used_fraction"], 0.5);
  EXPECT_EQ(model["first_token"]["count"], 2);
  EXPECT_NEAR(model["first_token"]["p50"], 0.05, 1e-9);
  EXPECT_EQ(model["inter_token"]["p50"], nullptr);
  EXPECT_EQ(model["linear_fraction"], 0.25);
  EXPECT_EQ(model["layers"][0]["linear_fraction"], 0.5);
  EXPECT_EQ(model["layers"][1]["linear_fraction"], 0);
  EXPECT_EQ(json["replicas"][0]["up"], true);
  EXPECT_EQ(json["replicas"][0]["version"], "0.1.0");
}

TEST_F(Top, ShowsAModelWithItsLayers) {
  const Finished run = Gatehouse(Arguments({"--once"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("\nm  "), HasSubstr("running 3  waiting 1"), HasSubstr("50.0% of 10.0 KiB"),
                             HasSubstr("25.0%"), HasSubstr("L0"), HasSubstr(" 50%"), HasSubstr("L1")));
  EXPECT_THAT(run.out, Not(HasSubstr("\x1b")));
}

TEST_F(Top, PrintsALineAModelWhereThereIsNoTerminal) {
  const Finished run = Gatehouse(Arguments({"--timeout", "0.15"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr(" m  running 3  waiting 1  requests/s "),
                             HasSubstr("  KV 50%  linear 25.0%  layers 50% 0%\n")));
}

TEST_F(Top, SumsServersAndTellsOfThoseThatAreDown) {
  std::string gone;
  {
    gone = FakeHttp([] { return std::string(); }).address();
  }
  std::atomic<int> asked = 0;
  FakeHttp second([&] { return FakeHttp::Page(Page(asked++)); });
  const auto json = Gatehouse(Arguments({"--metrics", second.address(), "--metrics", gone, "--once", "--json"})).json();
  EXPECT_EQ(json["models"][0]["replicas"], 2);
  EXPECT_EQ(json["models"][0]["running"], 6);
  EXPECT_EQ(json["models"][0]["kv_used_fraction"], 0.5);
  EXPECT_EQ(json["models"][0]["first_token"]["count"], 4);
  EXPECT_EQ(json["replicas"][2]["up"], false);
  const Finished run = Gatehouse(Arguments({"--metrics", gone, "--once"}));
  EXPECT_THAT(run.out, AllOf(HasSubstr("down: Connection refused"), HasSubstr(server_.address())));
}

TEST_F(Top, LeavesATerminalAsItWas) {
  Interrupts interrupts;
  int asked = 0;
  FakeHttp server([&] {
    if (++asked == 3) interrupts.Raise();
    return FakeHttp::Page(Page(asked));
  });
  const Finished run = Gatehouse({"top", "--metrics", server.address(), "--interval", "0.1", "--color", "never"},
                                 {.terminal = true, .interrupts = &interrupts});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, ::testing::StartsWith("\x1b[?1049h"));
  EXPECT_THAT(run.out, ::testing::EndsWith("\x1b[?1049l"));
}

TEST(TopOfAnything, ShowsAPageThatMakesNoSense) {
  const std::string page =
      "gatehouse_build_info{version=\"\xff\x1b[2J\"} 1\n"
      "gatehouse_requests_running{model=\"m\xff\x1b[2J\"} 1e300\n"
      "gatehouse_kv_pages_used{model=\"m\xff\x1b[2J\"} NaN\n"
      "gatehouse_kv_pages_capacity{model=\"m\xff\x1b[2J\"} 1e300\n"
      "gatehouse_kv_page_bytes{model=\"m\xff\x1b[2J\"} 1e300\n"
      "process_resident_memory_bytes +Inf\n"
      "gatehouse_mlp_tokens_total{model=\"m\xff\x1b[2J\",layer=\"0\",path=\"linear\",phase=\"decode\"} 1e300\n"
      "gatehouse_mlp_tokens_total{model=\"m\xff\x1b[2J\",layer=\"0\",path=\"full\",phase=\"decode\"} -1e299\n";
  FakeHttp server([&] { return FakeHttp::Page(page); });
  const std::vector<std::string> once = {"top", "--metrics", server.address(), "--once", "--interval", "0.1"};
  const Finished text = Gatehouse(once);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("m\xEF\xBF\xBD\\x1b[2J"), Not(HasSubstr("\x1b")), Not(HasSubstr("of 0 B"))));
  std::vector<std::string> as_json = once;
  as_json.emplace_back("--json");
  const Finished json = Gatehouse(as_json);
  EXPECT_EQ(json.exit_code, 0) << json.err;
  EXPECT_EQ(json.json()["models"][0]["model"], "m\xEF\xBF\xBD\x1b[2J");
  EXPECT_EQ(json.json()["replicas"][0]["resident_bytes"], nullptr);
}

TEST(TopWithoutServers, SaysWhatToDo) {
  std::string gone;
  {
    gone = FakeHttp([] { return std::string(); }).address();
  }
  const Finished run = Gatehouse({"top", "--metrics", gone, "--once"});
  EXPECT_EQ(run.exit_code, kExitUnavailable);
  EXPECT_THAT(run.err, AllOf(HasSubstr("no metrics page at " + gone + " (Connection refused)"),
                             HasSubstr("--metrics-listen"), HasSubstr("`gatehouse doctor`")));
  EXPECT_THAT(Gatehouse({"top", "--metrics", "nowhere"}).err, HasSubstr("--metrics: 'nowhere' is not HOST:PORT"));
  FakeHttp other([] { return FakeHttp::Page("<html>"); });
  EXPECT_THAT(Gatehouse({"top", "--metrics", other.address(), "--once"}).err,
              HasSubstr("not of Prometheus' text format"));
}

}  // namespace
}  // namespace gatehouse::cli
