// Interventions and quorum gates through the real programs, on a model whose neurons are known.

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/running_server.h"
#include "tests/support/planted_model.h"

namespace gatehouse::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class InterventionsThroughThePrograms : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto truth = WritePlantedModel(model_dir(), {}, 12'000);
    ASSERT_TRUE(truth.ok()) << truth.status();
    truth_ = *truth;
    std::ifstream corpus(model_dir() / "corpus.txt");
    text_.resize(300);
    corpus.read(text_.data(), static_cast<std::streamsize>(text_.size()));
  }
  std::filesystem::path model_dir() const { return folder_.path() / "model"; }

  TemporaryFolder folder_;
  PlantedTruth truth_;
  std::string text_;
};

std::string Joined(const std::vector<int>& numbers) {
  std::string joined;
  for (const int number : numbers) joined += (joined.empty() ? "" : ",") + std::to_string(number);
  return joined;
}

TEST_F(InterventionsThroughThePrograms, ChangeSkipCaptureAndCount) {
  const RunningServer server({"--model", "planted=" + model_dir().string(), "--state-dir", folder_.path() / "state"});
  const auto score = [&](std::vector<std::string> flags) {
    std::vector<std::string> arguments = {"score", "-m", "planted", "--text", text_, "--summary-only"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  };
  const auto nats = [&](std::vector<std::string> flags) {
    return server.Json(score(std::move(flags)))["total_logprob"].get<double>();
  };
  // Without a calibration.
  const double full = nats({}), zeroed = nats({"--intervene", "mlp-zero:L3"});
  EXPECT_NE(full, zeroed);
  EXPECT_EQ(nats({"--intervene", "path=skip:L3"}), zeroed);
  EXPECT_EQ(nats({"--intervene", "scale=1:L0-3:n0-255"}), full);
  EXPECT_EQ(server.Error(score({"--intervene", "mean:L3:n1"}))["reason"], "NOT_CALIBRATED");

  const auto made = server.Json({"calibrate", "-m", "planted", "--corpus", model_dir() / "corpus.txt"});
  ASSERT_EQ(made["operation"]["state"], "succeeded") << made["operation"].dump(2);
  const std::string consensus = Joined(truth_.consensus), exception = Joined(truth_.exception);
  EXPECT_NE(nats({"--intervene", "mean:L3:n" + exception}), full);
  EXPECT_NE(nats({"--intervene", "zero:L3:n" + exception}), nats({"--intervene", "zero:L3:n" + consensus}));
  // An intervention beside a policy: the answer says what it did to it.
  const auto both = server.Json(score({"--gating", "linear", "--intervene", "zero:L3:n" + exception}));
  EXPECT_EQ(both["routing"]["layers"][3]["linear_tokens"], 0);
  EXPECT_THAT(both["routing"]["notes"], Contains("layer 3 ran in full where its neurons were changed"));

  // The quorum gate, counted exactly.
  const auto skipped = [&] { return server.Metric("gatehouse_mlp_tokens_total", {"layer=\"3\"", "path=\"skip\""}); };
  const double before = skipped();
  const std::string quorum = std::to_string(truth_.consensus.size());
  const auto gated = server.Json({"score", "-m", "planted", "--text", text_, "--gating", "quorum", "--quorum", quorum,
                                  "--quorum-path", "skip", "--layers", "3", "--record", "routing,consensus"});
  double levels = 0;
  for (const auto& token : gated["tokens"]) {
    const auto& insight = token["insight"];
    const bool full_house = insight["consensus"][3]["level"] == truth_.consensus.size();
    const bool skips = insight["paths"][3] == "skip";
    EXPECT_EQ(skips, full_house && token["position"] >= 4);
    levels += skips ? 1 : 0;
  }
  EXPECT_GT(levels, 0);
  EXPECT_EQ(gated["routing"]["skip_decisions"], levels);
  EXPECT_EQ(gated["routing"]["layers"][3]["skip_tokens"], levels);
  EXPECT_EQ(skipped() - before, levels);
  const double tokens = gated["token_count"], work = 2 * 64 * 256;
  EXPECT_NEAR(gated["routing"]["mlp_work_saved"],
              (levels * work - (tokens - 4) * static_cast<double>(truth_.consensus.size()) * 64) / (4 * tokens * work),
              1e-9);

  // What is captured is saved.
  const std::string out = folder_.path() / "captured.npz";
  const auto captured = server.Json({"generate", "-m", "planted", "--prompt", text_.substr(0, 60), "-n", "4",
                                     "--ignore-eos", "--temperature", "0", "--capture", "neurons:L3", "--capture",
                                     "residual-post@0-2", "--capture-out", out});
  const auto& arrays = captured["captured"]["arrays"];
  ASSERT_EQ(arrays.size(), 5u);
  EXPECT_EQ(arrays[0]["site"], "neurons");
  EXPECT_EQ(arrays[0]["width"], 256);
  EXPECT_EQ(arrays[0]["positions"], captured["prompt_tokens"].get<int>() + 3);
  EXPECT_EQ(arrays[1]["positions"], 3);
  EXPECT_GT(std::filesystem::file_size(out), 256u * 4);

  const auto refused = server.Error(score({"--intervene", "zero:L3:n256"}));
  EXPECT_EQ(refused["reason"], "INVALID_FIELD");
  EXPECT_THAT(refused["message"], HasSubstr("interventions[0].neurons names neuron 256, must be in [0, 256)"));
}

}  // namespace
}  // namespace gatehouse::testing
