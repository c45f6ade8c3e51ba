#include <gmock/gmock.h>

#include <ostream>
#include <sstream>

#include "tests/client/cli_answers.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Models, PrintsLayersWithPlainNeuronIndicesAsJson) {
  FakeServer server(Handlers());
  const auto json = Gatehouse({"models", "--json", "--server", server.address()}).json();
  EXPECT_EQ(json["replica"], "r1");
  const auto& model = json["models"][0];
  EXPECT_EQ(model["name"], "m");
  EXPECT_EQ(model["layer_count"], 2);
  ASSERT_EQ(model["layers"].size(), 2u);
  EXPECT_EQ(model["layers"][1]["consensus"], nlohmann::json::parse("[12, 7]"));
  EXPECT_EQ(model["layers"][1]["exception"], nlohmann::json::parse("[99]"));
  EXPECT_EQ(model["layers"][0]["surrogate_r2"], 0.875);
  EXPECT_EQ(model["layers"][0]["gateable"], true);
  EXPECT_EQ(model["layers"][1]["linear_cost"], nullptr);  // NaN
}

TEST(Models, FailWhereStandardOutputTakesNothing) {
  FakeServer server(Handlers());
  std::istringstream in;
  std::ostream full(nullptr);
  std::ostringstream err;
  Interrupts interrupts;
  EXPECT_EQ(RunProgram({"models", "--server", server.address()}, {.in = in,
                                                                  .out = full,
                                                                  .err = err,
                                                                  .out_is_terminal = false,
                                                                  .err_is_terminal = false,
                                                                  .width = 80,
                                                                  .interrupts = interrupts}),
            kExitFailed);
  EXPECT_THAT(err.str(), HasSubstr("cannot write standard output"));
}

TEST(Models, ShowsLayersOfOneThatIsNamed) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse({"models", "m", "--server", server.address()});
  EXPECT_THAT(run.out, AllOf(StartsWith("m\n  gpt2 · 7.1M parameters · 2 layers"), HasSubstr("+1.20%  0.875  yes"),
                             HasSubstr("layer 1  consensus 12, 7 · exception 99")));
  // Beside what chance names.
  EXPECT_THAT(run.out, AllOf(HasSubstr(" 2 (0.3, 3) "), HasSubstr("neurons named (under shuffled labels, ")));
  const Finished all = Gatehouse({"models", "--server", server.address()});
  EXPECT_THAT(all.out, HasSubstr("m     gpt2                7.1M       2      128  float32       1/2  cal"));
}

TEST(Models, ListsTheOperatingPoints) {
  FakeHandlers handlers = Handlers();
  handlers.describe_model = [](const auto&, v1::DescribeModelResponse& response) {
    response = WithOperatingPoints();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"models", "m", "--server", server.address()});
  EXPECT_THAT(run.out, HasSubstr("  operating points · sequential · ladders\n"
                                 "  name  perplexity  95% interval      MLP work saved  linear  ladder\n"
                                 "  1%        +0.90%  -0.20% to +6.00%           25.0%   20.0%   12.5%\n"
                                 "  5%        +4.90%  -0.20% to +6.00%           25.0%   20.0%   12.5%\n"));
  EXPECT_THAT(run.out, HasSubstr("gateway  ladder\n"));
  const auto model = Gatehouse({"models", "m", "--json", "--server", server.address()}).json()["models"][0];
  EXPECT_EQ(model["layers"][0]["ladder_neurons"], 0);
  EXPECT_EQ(model["layers"][1]["ladder_neurons"], 64);
  EXPECT_EQ(model["calibration"]["ingredients"], nlohmann::json::parse(R"(["sequential", "ladders"])"));
  EXPECT_EQ(model["calibration"]["operating_points"][1], nlohmann::json::parse(R"({
    "name": "5%", "budget": 0.05, "cost": 0.049, "cost_low": -0.002, "cost_high": 0.06, "work_saved": 0.25,
    "linear_fraction": 0.2, "ladder_fraction": 0.125,
    "layers": [{"layer": 0, "linear_threshold": 0.6, "ladder_threshold": 1.0},
               {"layer": 1, "linear_threshold": 0.6, "ladder_threshold": -1.0}]})"));
}

TEST(Models, SelectsACalibration) {
  v1::SelectCalibrationRequest got;
  FakeHandlers handlers = Handlers();
  handlers.select_calibration = [&](const auto& request, v1::SelectCalibrationResponse& response) {
    got = request;
    response.mutable_calibration()->set_name(request.calibration());
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"models", "select-calibration", "m", "careful", "--server", server.address()});
  EXPECT_EQ(run.out, "m now uses calibration careful\n") << run.err;
  EXPECT_EQ(got.model(), "m");
}

}  // namespace
}  // namespace gatehouse::cli
