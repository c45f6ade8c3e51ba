// The main job on the embedded models: text, scores, analyses and the metrics beside
// them, through the real programs.

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "tests/integration/running_server.h"

namespace gatehouse::testing {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr char kPrompt[] = "The captain walked slowly up the hill towards the house,";
constexpr char kText[] =
    "The captain walked slowly up the hill towards the house, where the doctor was waiting for him with a letter in "
    "his hand.";

// One server on the embedded models for all tests of this program.  A model that has no
// calibration of its own gets a small one.
class MainJob : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    state_ = new TemporaryFolder;
    std::vector<std::string> flags = {"--state-dir", state_->path()};
    for (const char* model : kModels) {
      flags.insert(flags.end(),
                   {"--model", std::string(model) + "=" + SourceFile(std::string("models/") + model).string()});
    }
    server_ = new RunningServer(flags);
    for (const char* model : kModels) {
      if (!server_->Json({"models", model})["models"][0]["calibration"].is_null()) continue;
      server_->Json({"calibrate", "-m", model, "--corpus", SourceFile("tests/data/corpus/treasure_island.txt"),
                     "--fit-tokens", "1024", "--gate-tokens", "2048", "--select-tokens", "512", "--report-tokens",
                     "512", "--window-tokens", "128"});
    }
  }
  static void TearDownTestSuite() {
    server_->process().Signal(SIGTERM);
    EXPECT_EQ(server_->process().Wait(), 0) << server_->process().error_output();
    delete server_;
    delete state_;
  }

  static nlohmann::json Generate(const std::string& model, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate",     "--model", model,           "--prompt", kPrompt,
                                          "--max-tokens", "24",      "--temperature", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return server_->Json(arguments);
  }

  static constexpr const char* kModels[] = {"novella-gpt2-7m", "novella-neox-4m"};
  static TemporaryFolder* state_;
  static RunningServer* server_;
};
TemporaryFolder* MainJob::state_ = nullptr;
RunningServer* MainJob::server_ = nullptr;

std::vector<int> Ids(const nlohmann::json& result) {
  std::vector<int> ids;
  for (const auto& token : result["tokens"]) ids.push_back(token["id"]);
  return ids;
}

TEST_F(MainJob, TheModelsCardsFiguresComeOut) {
  for (const char* model : kModels) {
    std::ifstream file(SourceFile(std::string("models/") + model + "/expected.json"));
    const auto expected = nlohmann::json::parse(file);
    const std::string text = expected["text"];
    const auto score = server_->Json({"score", "-m", model, "--text", text});
    EXPECT_EQ(score["token_ids"], expected["ids"]) << model;
    ASSERT_EQ(score["logprobs"].size(), expected["logprobs"].size());
    for (size_t i = 0; i < expected["logprobs"].size(); ++i) {
      EXPECT_NEAR(score["logprobs"][i], expected["logprobs"][i], 1e-4) << model << " " << i;
    }
    const auto generated =
        server_->Json({"generate", "-m", model, "--prompt", text, "--max-tokens", "32", "--temperature", "0"});
    EXPECT_EQ(Ids(generated), expected["greedy_32"].get<std::vector<int>>()) << model;
    EXPECT_EQ(generated["routing"]["linear_fraction"], 0);
  }
}

TEST_F(MainJob, ThresholdOneEqualsFullBitForBit) {
  for (const char* model : kModels) {
    const auto full = Generate(model, {"--gating", "full"});
    const auto gated = Generate(model, {"--gating", "gated", "--threshold", "1"});
    EXPECT_EQ(full["tokens"], gated["tokens"]) << model;
    EXPECT_EQ(gated["routing"]["linear_fraction"], 0);
  }
}

TEST_F(MainJob, LowerThresholdsRouteMoreAndLinearRoutesAllButSinks) {
  for (const char* model : kModels) {
    double before = 0;
    for (const char* threshold : {"1", "0.7", "0.5", "0.3", "0"}) {
      const auto score = server_->Json(
          {"score", "-m", model, "--text", kText, "--gating", "gated", "--layers", "0-2", "-t", threshold});
      const double fraction = score["routing"]["linear_fraction"];
      EXPECT_GE(fraction, before) << model << " " << threshold;
      before = fraction;
    }
    EXPECT_GT(before, 0);
    const auto linear = server_->Json({"score", "-m", model, "--text", kText, "--gating", "linear"});
    const auto description = server_->Json({"models", model})["models"][0];
    const int layers = description["layer_count"], sinks = description["calibration"]["sink_positions"];
    const int tokens = linear["token_count"];
    EXPECT_EQ(linear["routing"]["decisions"], layers * tokens);
    EXPECT_EQ(linear["routing"]["linear_decisions"], layers * (tokens - sinks));
    EXPECT_DOUBLE_EQ(linear["routing"]["linear_fraction"], 1 - static_cast<double>(sinks) / tokens);
  }
}

TEST_F(MainJob, GeneratingAndScoringTheSameTokensGivesTheSameLogprobs) {
  for (const char* gating : {"full", "linear", "gated"}) {
    const auto generated = Generate("novella-gpt2-7m", {"--gating", gating});
    std::string ids;
    const auto prompt = server_->Json({"score", "-m", "novella-gpt2-7m", "--text", kPrompt});
    for (const int id : prompt["token_ids"]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    for (const int id : Ids(generated)) ids += "," + std::to_string(id);
    const auto scored = server_->Json({"score", "-m", "novella-gpt2-7m", "--token-ids", ids, "--gating", gating});
    const size_t first = prompt["token_ids"].size() - 1;
    for (size_t i = 0; i < generated["tokens"].size(); ++i) {
      EXPECT_NEAR(generated["tokens"][i]["logprob"], scored["logprobs"][first + i], 1e-4) << gating << " " << i;
    }
  }
}

TEST_F(MainJob, ScoresAddUpToThePerplexity) {
  const auto score = server_->Json({"score", "-m", "novella-gpt2-7m", "--text", kText});
  ASSERT_EQ(score["logprobs"].size() + 1, score["tokens"].size());
  double sum = 0;
  for (const double logprob : score["logprobs"]) sum += logprob;
  EXPECT_NEAR(sum, score["total_logprob"], 1e-3);
  EXPECT_NEAR(std::exp(-sum / static_cast<double>(score["logprobs"].size())), score["perplexity"], 1e-3);
  EXPECT_EQ(score["tokens"][0]["logprob"], nullptr);
}

TEST_F(MainJob, ALongTextIsScoredInWindowsEachTokenOnce) {
  const std::string file = SourceFile("tests/data/corpus/treasure_island.txt");
  std::ifstream in(file);
  std::string text(6000, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& window :
       std::vector<std::vector<std::string>>{{}, {"--window", "64"}, {"--window", "64", "--stride", "24"}}) {
    std::vector<std::string> arguments = {"score", "-m", "novella-neox-4m", "--text", text};
    arguments.insert(arguments.end(), window.begin(), window.end());
    const auto score = server_->Json(arguments);
    EXPECT_GT(score["token_count"], 512);
    EXPECT_EQ(score["scored_tokens"], static_cast<int>(score["token_count"]) - 1);
    for (const auto& logprob : score["logprobs"]) EXPECT_TRUE(logprob.is_number());
  }
  const auto blocks = server_->Json({"score", "-m", "novella-neox-4m", "--text", text, "--window", "64", "--blocks"});
  EXPECT_EQ(blocks["scored_tokens"], static_cast<int>(blocks["token_count"]) - static_cast<int>(blocks["windows"]));
}

TEST_F(MainJob, AnalysesReportEveryTokenAndLayer) {
  for (const char* model : kModels) {
    const auto scores = server_->Json({"nonlinearity", "-m", model, "--text", kText, "--text", "It was"});
    const size_t layers = scores["layers"].size();
    ASSERT_EQ(scores["texts"].size(), 2u);
    ASSERT_GT(scores["texts"][0]["tokens"].size(), 20u);
    for (const auto& token : scores["texts"][0]["tokens"]) {
      ASSERT_EQ(token["nonlinearity"].size(), layers);
      for (const auto& score : token["nonlinearity"]) EXPECT_THAT(score.get<double>(), Ge(0));
    }
    const auto consensus = server_->Json({"consensus", "-m", model, "--text", kText});
    for (const auto& token : consensus["texts"][0]["tokens"]) {
      for (const auto& layer : token["consensus"]) {
        const size_t of = consensus["layers"][layer["layer"].get<size_t>()]["consensus"].size();
        if (layer["level"].is_null()) {
          EXPECT_EQ(of, 0u);
        } else {
          EXPECT_EQ(layer["level"], layer["fired"].size());
          EXPECT_THAT(layer["fired"].size(), Le(of));
        }
      }
    }
  }
}

TEST_F(MainJob, WhereATokenWentLinearItsNeuronsDoNotExist) {
  const auto consensus = server_->Json({"consensus", "-m", "novella-gpt2-7m", "--text", kText, "--gating", "linear"});
  const auto scores = server_->Json({"nonlinearity", "-m", "novella-gpt2-7m", "--text", kText, "--gating", "linear"});
  for (const auto& token : consensus["texts"][0]["tokens"]) {
    for (const auto& layer : token["consensus"]) {
      if (token["position"] >= 4) {
        EXPECT_EQ(layer["level"], nullptr);
      }
    }
  }
  for (const auto& token : scores["texts"][0]["tokens"]) {
    for (const auto& score : token["nonlinearity"]) EXPECT_EQ(score.is_null(), token["position"] >= 4);
  }
}

TEST_F(MainJob, RecordsAgreeWithTheRoutingSummary) {
  const auto result =
      Generate("novella-gpt2-7m", {"--gating", "gated", "--layers", "1-4", "--record", "routing", "--record-prompt"});
  std::vector<int> linear(result["routing"]["layers"].size());
  const auto count = [&](const nlohmann::json& insight) {
    for (size_t layer = 0; layer < insight["paths"].size(); ++layer) {
      const bool went_linear = insight["paths"][layer] == "linear";
      linear[layer] += went_linear ? 1 : 0;
      const auto& margin = insight["gate_margin"][layer];
      if (!margin.is_null()) {
        EXPECT_EQ(margin > 0, went_linear);
      }
    }
  };
  for (const auto& token : result["prompt"]) count(token);
  for (const auto& token : result["tokens"]) {
    if (token.contains("insight")) count(token["insight"]);
  }
  for (const auto& layer : result["routing"]["layers"]) {
    EXPECT_EQ(layer["linear_tokens"], linear[layer["layer"].get<size_t>()]);
  }
}

TEST_F(MainJob, TheSameSeedGivesTheSameTokens) {
  const auto draw = [&](const std::string& seed) {
    return Ids(server_->Json(
        {"generate", "-m", "novella-gpt2-7m", "--prompt", kPrompt, "--max-tokens", "24", "--seed", seed}));
  };
  EXPECT_EQ(draw("0"), draw("0"));
  EXPECT_NE(draw("0"), draw("1"));
  const auto fresh = server_->Json({"generate", "-m", "novella-gpt2-7m", "--prompt", kPrompt, "--max-tokens", "24"});
  EXPECT_EQ(draw(std::to_string(fresh["seed"].get<uint64_t>())), Ids(fresh));
}

TEST_F(MainJob, AStopStringEndsTheTextBeforeIt) {
  const auto whole = Generate("novella-gpt2-7m", {});
  const std::string text = whole["text"];
  const std::string stop = text.substr(10, 6);
  const auto stopped = Generate("novella-gpt2-7m", {"--stop", stop});
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop_string");
  EXPECT_EQ(stopped["matched_stop"], stop);
}

// The sums of routing.layers of some answers, by layer.
struct Routed {
  std::map<int, std::pair<double, double>> full_and_linear;
  double generated = 0, prompt = 0;

  void Add(const nlohmann::json& answer) {
    for (const auto& layer : answer["routing"]["layers"]) {
      auto& [full, linear] = full_and_linear[layer["layer"]];
      full += layer["full_tokens"].get<double>();
      linear += layer["linear_tokens"].get<double>();
    }
    generated += answer.value("generated_tokens", 0);
    prompt += answer.value("prompt_tokens", 0);
  }
};

TEST_F(MainJob, TheMetricsEqualTheSumOfTheAnswersExactly) {
  const std::string model = "novella-neox-4m", label = "model=\"" + model + "\"";
  const Series before = server_->Metrics();
  Routed routed;
  for (const char* gating : {"full", "linear", "gated"}) {
    routed.Add(Generate(model, {"--gating", gating}));
    routed.Add(server_->Json({"score", "-m", model, "--text", kText, "--gating", gating}));
  }
  routed.Add(server_->Json({"nonlinearity", "-m", model, "--text", kText}));
  routed.Add(server_->Json({"consensus", "-m", model, "--text", kText, "--gating", "linear"}));
  // An operation, which is not counted; and a refused call.
  server_->Json({"calibrate", "-m", model, "--corpus", SourceFile("tests/data/corpus/treasure_island.txt"),
                 "--fit-tokens", "512", "--gate-tokens", "512", "--select-tokens", "128", "--report-tokens", "128",
                 "--window-tokens", "64", "--no-activate"});
  server_->Error({"generate", "-m", model, "--prompt", ""});
  const Series after = server_->Metrics();

  const auto grew = [&](const std::string& name, const std::vector<std::string>& labels) {
    double sum = 0;
    for (const auto& [series, value] : after) {
      bool matches = series.starts_with(name + "{");
      for (const std::string& wanted : labels) matches = matches && series.find(wanted) != std::string::npos;
      const auto old = before.find(series);
      if (matches) sum += value - (old == before.end() ? 0 : old->second);
    }
    return sum;
  };
  ASSERT_FALSE(routed.full_and_linear.empty());
  for (const auto& [layer, counts] : routed.full_and_linear) {
    const std::string layer_label = "layer=\"" + std::to_string(layer) + "\"";
    EXPECT_EQ(grew("gatehouse_mlp_tokens_total", {label, layer_label, "path=\"full\""}), counts.first) << layer;
    EXPECT_EQ(grew("gatehouse_mlp_tokens_total", {label, layer_label, "path=\"linear\""}), counts.second) << layer;
  }
  EXPECT_EQ(grew("gatehouse_generated_tokens_total", {label}), routed.generated);
  EXPECT_EQ(grew("gatehouse_mlp_tokens_total", {"model=\"novella-gpt2-7m\""}), 0);
}

TEST_F(MainJob, BadPoliciesAreRefused) {
  const auto generate = [&](std::vector<std::string> policy) {
    policy.insert(policy.begin(), {"generate", "-m", "novella-gpt2-7m", "--prompt", kPrompt});
    return server_->Error(policy);
  };
  for (const auto& policy :
       std::vector<std::vector<std::string>>{{"--gating", "gated", "--threshold", "nan"},
                                             {"--gating", "gated", "--threshold", "1.5"},
                                             {"--gating", "gated", "--layer-threshold", "99=0.5"},
                                             {"--gating", "gated", "--layer-threshold", "1=nan"},
                                             {"--gating", "linear", "--layers", "7-8"},
                                             {"--gating", "linear", "--layer-threshold", "1=0.5"}}) {
    EXPECT_EQ(generate(policy)["code"], "INVALID_ARGUMENT") << ::testing::PrintToString(policy);
  }
  EXPECT_EQ(generate({"--gating", "gated", "--calibration", "none-such"})["reason"], "CALIBRATION_NOT_FOUND");
}

TEST_F(MainJob, TheMetricsPageHasNoNumberThatIsNone) {
  const std::string page = server_->Page();
  EXPECT_THAT(page, HasSubstr("200 OK"));
  for (const auto& [series, value] : server_->Metrics()) EXPECT_TRUE(std::isfinite(value)) << series;
}

TEST_F(MainJob, TerminalFormsHoldWhatTheyPromise) {
  EXPECT_THAT(server_->Run({"nonlinearity", "-m", "novella-gpt2-7m", "--text", kText}).out,
              AllOf(HasSubstr("Nonlinearity at layer "), HasSubstr("Layers × tokens"), HasSubstr("barely nonlinear")));
  EXPECT_THAT(server_->Run({"consensus", "-m", "novella-gpt2-7m", "--text", kText}).out,
              HasSubstr("Consensus at layer "));
  EXPECT_THAT(server_->Run({"models"}).out, HasSubstr("novella-neox-4m"));
  const Finished generated = server_->Run({"generate", "-m", "novella-gpt2-7m", "--prompt", kPrompt, "--max-tokens",
                                           "5", "--temperature", "0", "--gating", "linear"});
  EXPECT_THAT(generated.err, AllOf(HasSubstr("5 tokens"), HasSubstr("% linear")));
}

}  // namespace
}  // namespace gatehouse::testing
