// Whole-model gating through the real programs: calibrated to a budget, then named by a request.

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/running_server.h"
#include "tests/support/planted_model.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;

class OperatingPoints : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WritePlantedModel(model_dir()).ok());
    std::ifstream whole(corpus());
    text_.resize(4000);
    whole.read(text_.data(), static_cast<std::streamsize>(text_.size()));
  }
  std::filesystem::path model_dir() const { return folder_.path() / "model"; }
  std::filesystem::path corpus() const { return model_dir() / "corpus.txt"; }

  TemporaryFolder folder_;
  std::string text_;
};

// The answer's shares of the MLPs' multiplications, recounted from its own layers.
double WorkSaved(const nlohmann::json& routing, const nlohmann::json& model, const nlohmann::json& point) {
  const double d = model["d_model"], full = 2 * d * model["d_mlp"].get<double>();
  double done = 0, tokens = 0;
  for (size_t i = 0; i < routing["layers"].size(); ++i) {
    const auto& layer = routing["layers"][i];
    const double full_tokens = layer["full_tokens"], linear = layer["linear_tokens"], ladder = layer["ladder_tokens"];
    const double neurons = model["layers"][i]["ladder_neurons"];
    done += full_tokens * full + linear * d * d + ladder * (d * d + 2 * d * neurons);
    tokens += full_tokens + linear + ladder;
    const double linear_threshold = point["layers"][i]["linear_threshold"];
    const double ladder_threshold = point["layers"][i]["ladder_threshold"];
    const bool asks =
        linear_threshold >= 0 && !(linear_threshold >= 1 && (ladder_threshold < 0 || ladder_threshold >= 1));
    // One window: all but its sinks.
    if (asks) done += d * (full_tokens + linear + ladder - model["calibration"]["sink_positions"].get<double>());
  }
  return 1 - done / (tokens * full);
}

TEST_F(OperatingPoints, AreMadeByABudgetListedAndServed) {
  const RunningServer server({"--model", "planted=" + model_dir().string(), "--state-dir", folder_.path() / "state"});
  const auto made = server.Json({"calibrate", "-m",
                                 "planted",   "--corpus",
                                 corpus(),    "--fit-tokens",
                                 "1024",      "--gate-tokens",
                                 "2048",      "--select-tokens",
                                 "1024",      "--report-tokens",
                                 "1024",      "--window-tokens",
                                 "64",        "--budget",
                                 "5%",        "--budget",
                                 "20%",       "--no-tune"});
  ASSERT_EQ(made["operation"]["state"], "succeeded") << made["operation"].dump(2);
  const auto model = server.Json({"models", "planted"})["models"][0];
  const auto& points = model["calibration"]["operating_points"];
  ASSERT_FALSE(points.empty());
  EXPECT_EQ(made["operating_points"], points);
  const auto& point = points.back();  // of the largest budget
  EXPECT_EQ(point["name"], "20%");
  EXPECT_GT(point["work_saved"], 0);

  const auto score = [&](std::vector<std::string> gating) {
    std::vector<std::string> arguments = {"score", "-m", "planted", "--text", text_.substr(0, 300), "--summary-only"};
    arguments.insert(arguments.end(), gating.begin(), gating.end());
    return server.Json(arguments);
  };
  const auto gated = score({"--operating-point", "20%"});
  const auto& routing = gated["routing"];
  ASSERT_EQ(gated["windows"], 1);
  EXPECT_GT(routing["linear_decisions"].get<double>() + routing["ladder_decisions"].get<double>(), 0);
  EXPECT_NEAR(routing["mlp_work_saved"], WorkSaved(routing, model, point), 1e-9);
  for (const auto& layer : routing["layers"]) {
    const std::string label = "layer=\"" + std::to_string(layer["layer"].get<int>()) + "\"";
    for (const char* const path : {"full", "linear", "ladder"}) {
      EXPECT_EQ(server.Metric("gatehouse_mlp_tokens_total", {label, "path=\"" + std::string(path) + "\""}),
                layer[std::string(path) + "_tokens"])
          << label << " " << path;
    }
  }
  // The same policy, said in full.
  EXPECT_EQ(score({"--gating", "gated", "--operating-point", "20%"})["total_logprob"], gated["total_logprob"]);
  EXPECT_EQ(server.Error({"score", "-m", "planted", "--text", "a", "--operating-point", "3%"})["reason"],
            "OPERATING_POINT_NOT_FOUND");
  EXPECT_THAT(server.Error({"score", "-m", "planted", "--text", "a", "--operating-point", "3%"})["message"],
              HasSubstr("5%, 20%"));
  const auto clash = server.Error({"score", "-m", "planted", "--text", "a", "--operating-point", "5%", "-t", "0.5"});
  EXPECT_EQ(clash["reason"], "INVALID_FIELD");
  EXPECT_THAT(clash["message"], HasSubstr("operating_point and threshold"));
}

}  // namespace
}  // namespace gatehouse::testing
