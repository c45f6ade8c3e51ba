#include <gmock/gmock.h>

#include <cmath>

#include "tests/client/cli_answers.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST(Score, PrintsLogprobsOfTheTokensFromTheSecondOn) {
  v1::ScoreRequest got;
  FakeHandlers handlers = Handlers();
  handlers.score = [&](const v1::ScoreRequest& request, const auto& stream) {
    got = request;
    v1::ScoreResponse response;
    for (int i = 0; i < 3; ++i) {
      auto& token = *response.mutable_tokens()->add_tokens();
      token.set_id(5 + i);
      token.set_position(static_cast<uint32_t>(i));
      token.set_raw(Word(static_cast<size_t>(i)));
      if (i == 2) token.set_logprob(-1.5f);
    }
    stream.write(response);
    auto& summary = *response.mutable_summary();
    summary.set_tokens(3);
    summary.set_scored_tokens(1);
    summary.set_total_logprob(-1.5);
    summary.set_perplexity(std::exp(1.5));
    summary.set_windows(1);
    stream.write(response);
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"--json", "score", "--model", "m", "--token-ids", "5,6,7", "--window", "8",
                                  "--stride", "4", "--blocks", "--gating", "linear", "--server", server.address()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(got.input().token_ids().ids(), ElementsAre(5, 6, 7));
  EXPECT_EQ(got.window().size(), 8u);
  EXPECT_EQ(got.window().stride(), 4u);
  EXPECT_TRUE(got.window().blocks());
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_LINEAR);
  const auto json = run.json();
  EXPECT_EQ(json["logprobs"], nlohmann::json::parse("[null, -1.5]"));
  EXPECT_EQ(json["token_ids"], nlohmann::json::parse("[5, 6, 7]"));
  EXPECT_EQ(json["tokens"][2],
            nlohmann::json::parse(R"({"id": 7, "text": " sailed", "position": 2, "logprob": -1.5})"));
  EXPECT_DOUBLE_EQ(json["perplexity"], std::exp(1.5));
  EXPECT_EQ(json["routing"]["linear_fraction"], 0);

  const Finished text = Gatehouse({"score", "-m", "m", "--text", "x", "--tokens", "--server", server.address()});
  EXPECT_EQ(text.out,
            "position  id  token      logprob  likeliest\n"
            "       0   5  \"The\"            –  \n"
            "       1   6  \" ship\"          –  \n"
            "       2   7  \" sailed\"  -1.5000  \n"
            "\n"
            "perplexity 4.4817 · 1.5000 nats a token · 0.0% linear\n");
  EXPECT_THAT(text.err, StartsWith("1 of 3 tokens scored · 1 window"));
}

TEST(Nonlinearity, DrawsBlocksUnderTheTextWhereThereAreNoColours) {
  FakeServer server(Handlers());
  const Finished run =
      Gatehouse({"nonlinearity", "-m", "m", "--text", "x", "--server", server.address()}, {.width = 40});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("Nonlinearity at layer 1\n"
                                  "The ship sailed⏎\n"
                                  "████████████████\n"
                                  " home.\n"
                                  "▆▆▆▆▆▁\n"
                                  "\n"
                                  "Layers × tokens\n"
                                  "   0\n"
                                  "L0 ▁·▅▅▆▇\n"
                                  "L1 ████▆▁\n"));
}

TEST(Nonlinearity, ColoursTheTextOnATerminal) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse(
      {"nonlinearity", "-m", "m", "--text", "x", "--layer", "0", "--color", "always", "--server", server.address()});
  EXPECT_THAT(run.out, StartsWith("\x1b[1mNonlinearity at layer 0\x1b[0m\n"
                                  "\x1b[38;5;255;48;5;24mThe\x1b[0m\x1b[2m ship\x1b[0m"
                                  "\x1b[38;5;255;48;5;94m sailed\x1b[0m"));
  EXPECT_EQ(Gatehouse({"nonlinearity", "-m", "m", "--text", "x", "--layer", "2", "--server", server.address()}).err,
            "gatehouse: --layer 2 is not in [0, 2)\n");
}

TEST(Nonlinearity, PrintsEveryTextTokenAndLayerAsJson) {
  v1::ScoreNonlinearityRequest got;
  FakeHandlers handlers = Handlers();
  handlers.nonlinearity = [&, answer = handlers.nonlinearity](const auto& request, const auto& stream) {
    got = request;
    return answer(request, stream);
  };
  FakeServer server(handlers);
  const auto json =
      Gatehouse({"nonlinearity", "-m", "m", "--text", "x", "--text", "y", "--json", "--server", server.address()})
          .json();
  EXPECT_EQ(got.inputs_size(), 2);
  EXPECT_EQ(json["calibration"], "cal");
  EXPECT_EQ(json["layers"][1],
            nlohmann::json::parse(R"({"layer": 1, "p25": 1.0, "p50": 2.0, "p70": 4.0, "p95": 8.0})"));
  ASSERT_EQ(json["texts"].size(), 2u);
  ASSERT_EQ(json["texts"][1]["tokens"].size(), 6u);
  EXPECT_EQ(json["texts"][1]["tokens"][1], nlohmann::json::parse(R"({
    "id": 11, "text": " ship", "position": 1, "paths": ["linear", "full"], "gate_margin": [0.25, null],
    "nonlinearity": [null, 16.0], "output_norm": [null, 17.0]})"));
}

TEST(Consensus, ListsTheTokensOfTheRichestLayer) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse({"consensus", "-m", "m", "--text", "x", "--server", server.address()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("Consensus at layer 1\n"
                                  "consensus neurons 12, 7 · exception 99\n"
                                  "position  token      consensus    exception   ‖y‖  \n"
                                  "       0  \"The\"      ○○ 0/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       1  \" ship\"    ●○ 1/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       2  \" sailed\"  ●● 2/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       3  \"⏎\"        ○○ 0/2       ✱ 99       3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       4  \" home\"    ●○ 1/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       5  \".\"        not in full             3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "\n"
                                  "Layers × tokens\n"
                                  "   0\n"
                                  "L1 ▁▅█✱▅·\n"));
}

TEST(Consensus, PrintsLevelsAndNeuronsAsJson) {
  FakeServer server(Handlers());
  const auto json = Gatehouse({"consensus", "-m", "m", "--text", "x", "--json", "--server", server.address()}).json();
  EXPECT_EQ(json["layers"][1],
            nlohmann::json::parse(R"({"layer": 1, "consensus": [12, 7], "exception": [99], "gateway": []})"));
  const auto& tokens = json["texts"][0]["tokens"];
  EXPECT_EQ(tokens[4]["consensus"][1],
            nlohmann::json::parse(R"({"layer": 1, "level": 1, "fired": [12], "exceptions_fired": []})"));
  EXPECT_EQ(tokens[5]["consensus"][1]["level"], nullptr);
}

}  // namespace
}  // namespace gatehouse::cli
