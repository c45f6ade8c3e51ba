// `gatehouse report`: the page of a text, and its JSON.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/client/fake_server.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kLayers = 3;

void AddInsight(v1::ScoredToken& token) {
  v1::TokenInsight& insight = *token.mutable_insight();
  insight.set_id(token.id());
  insight.set_position(token.position());
  insight.set_raw(token.raw());
  for (int layer = 0; layer < kLayers; ++layer) {
    insight.add_nonlinearity(static_cast<float>(layer) + 0.5f);
    insight.add_output_norm(2);
    insight.add_gate_probability(0.25f * static_cast<float>(layer + 1));
    v1::LayerConsensus& consensus = *insight.add_consensus();
    consensus.set_layer(static_cast<uint32_t>(layer));
    if (layer == 1) consensus.set_level(1);
    if (layer == 1) consensus.add_fired(7);
  }
}

// A model of three layers, of which the middle one is gateable, that scores any text as
// "é", in two tokens, and a piece of markup.
struct FakeModel {
  std::vector<v1::ScoreRequest> scored;
  bool one_token = false;

  FakeHandlers Handlers() {
    FakeHandlers handlers;
    handlers.describe_model = [](const auto& request, auto& response) {
      if (request.model() != "m") return FakeStatus{5, "no model of that name", "MODEL_NOT_FOUND"};
      response.set_name("m");
      response.set_layers(kLayers);
      response.set_dtype("float32");
      response.mutable_calibration()->set_name("cal");
      response.mutable_calibration()->set_sink_positions(1);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        v1::LayerCalibration& entry = *response.mutable_calibration()->add_layers();
        entry.set_layer(layer);
        entry.set_gateable(layer == 1);
        entry.set_p95(4);
        if (layer == 1) entry.add_consensus()->set_neuron(7);
        if (layer == 1) entry.add_exception()->set_neuron(9);
      }
      return FakeStatus{};
    };
    handlers.score = [this](const auto& request, const auto& stream) {
      scored.push_back(request);
      v1::ScoreResponse tokens, summary;
      const std::vector<std::string> raws = {"\xC3", "\xA9", "</script>"};
      for (uint32_t i = 0; i < raws.size(); ++i) {
        v1::ScoredToken& token = *tokens.mutable_tokens()->add_tokens();
        token.set_id(static_cast<int32_t>(40 + i));
        token.set_position(i);
        token.set_raw(raws[i]);
        if (i > 0) token.set_logprob(-0.5f);
        if (i + 1 < raws.size()) AddInsight(token);
      }
      if (!request.summary_only()) stream.write(tokens);
      summary.mutable_summary()->set_tokens(3);
      summary.mutable_summary()->set_windows(1);
      const bool full = request.gating().mode() == v1::GatingPolicy::MODE_UNSPECIFIED;
      if (!one_token) summary.mutable_summary()->set_perplexity(full ? 20 : 20 + static_cast<double>(scored.size()));
      stream.write(summary);
      return FakeStatus{};
    };
    return handlers;
  }
};

class ReportCommand : public ::testing::Test {
 protected:
  ReportCommand() : server_(model_.Handlers()) {}
  Finished Report(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--server", server_.address(), "report", "-m", "m"});
    return Gatehouse(more);
  }
  FakeModel model_;
  FakeServer server_;
};

TEST_F(ReportCommand, PrintsEveryTokenWithWhatWasRecordedOfIt) {
  const auto report = Report({"some text", "--json"}).json();
  const auto& trace = report["sections"][0];
  EXPECT_EQ(trace["kind"], "trace");
  EXPECT_EQ(trace["calibration"], "cal");
  EXPECT_EQ(trace["sink_positions"], 1);
  ASSERT_EQ(trace["layers"].size(), 3u);
  EXPECT_EQ(trace["layers"][1]["gateable"], true);
  EXPECT_EQ(trace["layers"][1]["consensus"], nlohmann::json({7}));
  EXPECT_EQ(trace["layers"][1]["exception"], nlohmann::json({9}));
  ASSERT_EQ(trace["tokens"].size(), 3u);
  // The character is shown where it is whole.
  EXPECT_EQ(trace["tokens"][0]["text"], "");
  EXPECT_EQ(trace["tokens"][1]["text"], "é");
  EXPECT_EQ(trace["tokens"][1]["gate_probability"], nlohmann::json({0.25, 0.5, 0.75}));
  EXPECT_EQ(trace["tokens"][1]["nonlinearity"], nlohmann::json({0.5, 1.5, 2.5}));
  EXPECT_EQ(trace["tokens"][1]["consensus"][1]["fired"], nlohmann::json({7}));
  EXPECT_EQ(trace["tokens"][1]["logprob"], -0.5);
  EXPECT_EQ(trace["tokens"][0]["logprob"], nullptr);
  EXPECT_FALSE(trace["tokens"][2].contains("gate_probability"));
  const v1::TokenRecords& records = model_.scored[0].records();
  EXPECT_TRUE(records.nonlinearity() && records.consensus() && records.gate());
  EXPECT_EQ(model_.scored[0].gating().calibration(), "cal");
}

TEST_F(ReportCommand, MeasuresPerplexityOfTheGateableLayersAndOfAll) {
  const auto report = Report({"some text", "--json", "--thresholds", "0.25,0.75"}).json();
  std::vector<std::string> runs;
  for (size_t i = 1; i < model_.scored.size(); ++i) {
    const v1::ScoreRequest& request = model_.scored[i];
    EXPECT_TRUE(request.summary_only());
    EXPECT_FALSE(request.records().gate());
    EXPECT_EQ(request.gating().calibration(), "cal");
    std::string run = v1::GatingPolicy::Mode_Name(request.gating().mode());
    if (request.gating().has_threshold()) run += " " + std::to_string(request.gating().threshold()).substr(0, 4);
    for (uint32_t layer : request.gating().layers()) run += " " + std::to_string(layer);
    runs.push_back(run);
  }
  EXPECT_THAT(runs, ElementsAre("MODE_GATED 0.75 1", "MODE_GATED 0.25 1", "MODE_LINEAR 1", "MODE_GATED 0.75 0 1 2",
                                "MODE_GATED 0.25 0 1 2", "MODE_LINEAR 0 1 2"));
  std::vector<double> thresholds, perplexities;
  for (const auto& run : report["sections"][0]["measured"]) {
    thresholds.push_back(run["threshold"]);
    perplexities.push_back(run["perplexity"]);
  }
  EXPECT_THAT(thresholds, ElementsAre(1, 0.75, 0.25, 0, 1, 0.75, 0.25, 0));
  EXPECT_THAT(perplexities, ElementsAre(20, 22, 23, 24, 20, 25, 26, 27));
  EXPECT_EQ(report["tables"][0]["columns"][3]["values"][1], 22.0 / 20 - 1);
}

TEST_F(ReportCommand, WritesAPageThatHoldsTheReport) {
  const std::string file = std::filesystem::path(::testing::TempDir()) / "report_cli_test.html";
  const Finished run = Report({"--token-ids", "40,41,42", "--out", file});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr(file + ": 3 tokens in 3 layers, perplexity 20.000 in full; 1 layer gateable."));
  EXPECT_EQ(model_.scored[0].input().token_ids().ids_size(), 3);
  std::ifstream in(file);
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  EXPECT_THAT(page, HasSubstr("\"kind\":\"trace\""));
  EXPECT_THAT(page, HasSubstr("\"text\":\"\\u003c/script\\u003e\""));
  std::filesystem::remove(file);
}

TEST_F(ReportCommand, LeavesOutPerplexityWhereNothingIsPredicted) {
  model_.one_token = true;
  const auto report = Report({"x", "--json"}).json();
  EXPECT_EQ(model_.scored.size(), 1u);
  EXPECT_EQ(report["sections"][0]["measured"], nlohmann::json::array());
  EXPECT_EQ(report["tables"], nlohmann::json::array());
}

TEST_F(ReportCommand, TakesOneTextAndThresholdsThatAreNumbers) {
  EXPECT_EQ(Report({"--json"}).exit_code, 2);
  EXPECT_EQ(Report({"a", "b", "--json"}).exit_code, 2);
  const Finished run = Report({"a", "--thresholds", "0.5,x"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--thresholds"));
  EXPECT_TRUE(model_.scored.empty());
}

TEST_F(ReportCommand, SaysWhatTheServerSays) {
  const Finished run = Gatehouse({"--server", server_.address(), "report", "-m", "other", "text", "--json"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.json()["error"]["reason"], "MODEL_NOT_FOUND");
}

}  // namespace
}  // namespace gatehouse::cli
